"""The sandbox's tiny model: its replies (script), how each word follows from the last ones (machine), how a prompt
selects a script (template), and the tokens and tensors that implement this (vocabulary, weights).

script, machine and template need only the standard library, so tests can use them without an engine.
"""
