"""The plan of vllm-spark: typed, pure where it decides, and free of Ansible imports."""
