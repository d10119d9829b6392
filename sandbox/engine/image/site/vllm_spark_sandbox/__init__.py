"""What the sandbox changes in vLLM, through vLLM's own plug-in point for platforms."""


def register() -> str:
    """The platform that vLLM is to use, in place of its own for CPUs."""
    return "vllm_spark_sandbox.platform.SandboxPlatform"
