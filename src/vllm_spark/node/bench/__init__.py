"""The bench client: sends the requests of a profile's cells and measures their streams. Standard library only.

It runs on the head of a deployment, beside the engine, so that no other network falsifies the times; `vllm-spark bench`
runs the same modules on the controller for any OpenAI-compatible server.
"""
