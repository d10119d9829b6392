"""The CPU platform, starting faster."""

import os

from vllm.platforms.cpu import CpuPlatform


class SandboxPlatform(CpuPlatform):
    """vLLM's CPU platform with forked processes.

    A trick: vLLM spawns its engine core and its worker on a CPU, and each of the two imports everything again, some ten
    seconds of a slow core. Forked from the API server, they have it already. Inside a Ray actor vLLM goes back to
    spawning by itself.
    """

    @classmethod
    def check_and_update_config(cls, vllm_config):
        super().check_and_update_config(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
