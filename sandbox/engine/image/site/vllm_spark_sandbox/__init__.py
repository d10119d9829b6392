"""The sandbox's changes to vLLM, as a platform plug-in."""


def register() -> str:
    """Return the class of the platform, which replaces vLLM's CPU platform."""
    return "vllm_spark_sandbox.platform.SandboxPlatform"
