"""How the ranks of a CPU talk to each other; not in platform.py, because vLLM's part asks for the platform at once."""

import socket

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class SandboxCommunicator(CpuCommunicator):
    """Shared memory between ranks of one host, gloo between hosts.

    A trick: vLLM takes shared memory where all ranks have the same rendezvous port. Under Ray they have it across hosts
    as well, and each then waits for a segment that only the other host has.
    """

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        hosts = [""] * self.world_size
        torch.distributed.all_gather_object(hosts, socket.gethostname(), group=self.device_group)
        return len(set(hosts)) == 1 and super()._all_group_ranks_share_shm_group_name()
