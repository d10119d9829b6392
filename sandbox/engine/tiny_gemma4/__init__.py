"""The sandbox's tiny model: what it says (script), how that follows from the last words (machine), how a prompt chooses
a script (template), and the tokens and tensors that make it so (vocabulary, weights).

script, machine and template need the standard library alone, so tests can ask them without an engine.
"""
