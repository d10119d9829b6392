"""A CPU platform that starts faster and supports two hosts."""

import os

import torch
from vllm.platforms.cpu import CpuPlatform

# A workaround: Linux ends a process that uses AMX without having asked, and vLLM's attention on a CPU does not ask.
# With --enforce-eager nothing else has asked before it runs.
torch.cpu._init_amx()


class SandboxPlatform(CpuPlatform):
    """vLLM's CPU platform with forked processes, Ray, and gloo between hosts."""

    # A workaround: vLLM refuses Ray on a CPU only because its platform does not name a resource for placing ranks. Ray
    # counts the value of `ray start --num-gpus=1` as "GPU", as on a real Spark, and needs no hardware for it.
    ray_device_key = "GPU"

    @classmethod
    def check_and_update_config(cls, vllm_config):
        super().check_and_update_config(vllm_config)
        # A workaround: on a CPU vLLM spawns its engine core and its worker, and each of the two imports everything
        # again, which takes about ten seconds on a slow core. Forked processes inherit the imports of the API server.
        # Inside a Ray actor vLLM itself returns to spawning.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        # A workaround: the Sparks of the sandbox share the cores of one machine, and each rank uses all of them. The
        # ranks wait for each other in busy loops and are four times slower than with one thread each. vLLM sets the
        # number of threads in a variable that OpenMP reads when it is loaded, which is too late for a forked process.
        # Ray gives its actors one thread.
        if vllm_config.parallel_config.nnodes > 1:
            torch.set_num_threads(1)

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm_spark_sandbox.communicator.SandboxCommunicator"
