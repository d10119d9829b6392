"""The CPU platform, starting faster and fit for two hosts."""

import os

import torch
from vllm.platforms.cpu import CpuPlatform


class SandboxPlatform(CpuPlatform):
    """vLLM's CPU platform with forked processes, Ray, and gloo between hosts."""

    # A trick: vLLM refuses Ray on a CPU only because its platform names no resource to place a rank on. Ray's "GPU" is
    # what `ray start --num-gpus=1` says, on a real Spark as here; no hardware has to stand behind it.
    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config):
        super().check_and_update_config(vllm_config)
        # A trick: vLLM spawns its engine core and its worker on a CPU, and each of the two imports everything again,
        # some ten seconds of a slow core. Forked from the API server, they have it already. Inside a Ray actor vLLM
        # goes back to spawning by itself.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        # A trick: the Sparks of the sandbox share the cores of one machine, and each rank takes all of them. Waiting
        # for each other in busy loops they are four times slower than with a thread each. vLLM sets the number in a
        # variable that OpenMP reads when it is loaded, too late for a forked process. Ray gives its actors one thread.
        if vllm_config.parallel_config.nnodes > 1:
            torch.set_num_threads(1)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm_spark_sandbox.communicator.SandboxCommunicator"
