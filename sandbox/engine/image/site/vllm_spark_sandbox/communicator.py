"""Communication between ranks on a CPU. Not in platform.py, because vLLM's module requires the platform on import."""

import socket

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class SandboxCommunicator(CpuCommunicator):
    """Shared memory between ranks of one host, gloo between hosts.

    A workaround: vLLM uses shared memory if all ranks have the same rendezvous port. Under Ray the ports are equal
    across hosts, too, and each rank then waits for a segment that only the other host has.
    """

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        hosts = [""] * self.world_size
        torch.distributed.all_gather_object(hosts, socket.gethostname(), group=self.device_group)
        return len(set(hosts)) == 1 and super()._all_group_ranks_share_shm_group_name()
