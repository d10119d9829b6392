"""The command group `vllm-spark bench`: each sub-command is one file."""
