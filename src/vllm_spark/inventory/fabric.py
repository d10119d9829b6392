"""The fabric of a deployment: which netdevs and HCAs each host uses, and the environment variables that name them.

Facts are what plugins/module_utils/spark_fabric.py returns. Pure: no I/O, no Ansible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.core import engine_version as core_engine_version
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import FabricFacts
from vllm_spark.inventory import fabric_notes, fabric_refusals
from vllm_spark.inventory.links import HostFabric, Rail, rails

FABRIC_NAMES_DIFFER = register("fabric-names-differ", runbook="fabric-names-differ")

# From this release on the default Ray executor keeps the NCCL_* of the worker's own node (setdefault). The executor
# before it overwrites them with the head's: it copies every variable with these prefixes (vllm/ray/ray_env.py).
RAY_KEEPS_NODE_ENV_SINCE = (0, 23)
RAY_COPIED_PREFIXES = ("NCCL_", "UCX_")
# 0.20 has the new executor too, behind this switch. In later releases the switch selects the old one, until 0.33, which
# has no other and does not know the variable.
RAY_V2_SWITCH = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
RAY_V2_SWITCH_SINCE = (0, 20)


@dataclass(frozen=True, slots=True)
class FabricChoice:
    """The netdevs and HCAs that one host of a deployment uses.

    `netdevs` and `hcas` have the same order on all hosts; the first is the primary. `gid_index` is the
    primary's, for reports and gates. It is not stable enough for NCCL_IB_GID_INDEX.
    """

    host: str
    address: str
    netdev: str
    netdevs: tuple[str, ...]
    hcas: tuple[str, ...]
    gid_index: int | None
    mtu: int | None
    notes: tuple[str, ...] = ()


def choose(facts_by_host: Mapping[str, FabricFacts]) -> dict[str, FabricChoice]:
    """Return what each of several hosts uses to reach the others: subnets that all of them have, as by a cable of two
    or a switch. Raises RefusedError with every fault."""
    fabrics = [HostFabric.parse(host, facts) for host, facts in facts_by_host.items()]
    if len(fabrics) < 2:  # noqa: PLR2004  one host needs no fabric
        raise ValueError(f"a fabric joins two hosts or more, not {len(fabrics)}: {', '.join(facts_by_host)}")
    joined, crowded = rails(fabrics)
    refusals = list(fabric_refusals.refusals(fabrics, joined, crowded))
    if refusals:
        raise RefusedError(refusals)
    return {fabric.host: _choice(fabric, side, joined) for side, fabric in enumerate(fabrics)}


def _choice(fabric: HostFabric, side: int, joined: Sequence[Rail]) -> FabricChoice:
    used = [rail[side] for rail in joined]
    primary = used[0]
    return FabricChoice(
        host=fabric.host,
        address=str(primary.address.ip),
        netdev=primary.netdev.name,
        netdevs=tuple(link.netdev.name for link in used),
        hcas=tuple(link.hca.name for link in used),
        gid_index=primary.gid_index,
        mtu=primary.netdev.mtu,
        notes=fabric_notes.notes(fabric, used, joined),
    )


def env_refusals(
    choice: FabricChoice,
    executor: str,
    engine_version: str,
    peer: FabricChoice,
    engine_env: Mapping[str, str],
) -> Iterator[Refusal]:
    """Yield a refusal if this engine cannot use a host's own variables on each of the two ranks. `engine_env` is the
    recipe's env, which can switch the Ray executor."""
    if executor != "ray" or _keeps_node_env(engine_version, engine_env):
        return
    own, other = environment(choice, executor), environment(peer, executor)
    differing = [name for name in own if name.startswith(RAY_COPIED_PREFIXES) and own[name] != other.get(name)]
    if differing:
        values = "; ".join(
            f"{name} is {own[name]} on {choice.host}, {other[name]} on {peer.host}" for name in differing
        )
        yield FABRIC_NAMES_DIFFER(
            what=f"the Ray executor of vLLM {engine_version} writes the head's NCCL_* and UCX_* over the worker's, and "
            f"{values}",
            expected="the same names on both hosts",
            fix="set overrides.topology.executor: mp, or plug the cable into the same socket of both, or set "
            f'overrides.env.{RAY_V2_SWITCH}: "1" (0.20 to 0.32).',
        )


def environment(choice: FabricChoice, executor: str) -> dict[str, str]:
    """Return the container's variables of one rank that name its fabric. Each value belongs to one rank: no executor
    copies GLOO_*, TP_*, RAY_* or VLLM_HOST_IP to the other node."""
    common = {
        "VLLM_HOST_IP": choice.address,
        # Bootstrap and small tensors: one netdev, because the address that a rank sends to its peer is on this one.
        "GLOO_SOCKET_IFNAME": choice.netdev,
        "TP_SOCKET_IFNAME": choice.netdev,
        "UCX_NET_DEVICES": choice.netdev,
        # NCCL reads names as prefixes unless they follow "=": eth1 would match eth10 too.
        "NCCL_SOCKET_IFNAME": f"={choice.netdev}",
        "NCCL_IB_HCA": f"={','.join(choice.hcas)}",
        "NCCL_IB_DISABLE": "0",
        # Instead of NCCL_IB_GID_INDEX: a GID's index changes when a link goes down and up, and differs between the
        # twins, and a pinned index then hangs after the weights are loaded (ibv_modify_qp failed).
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        # GB10 has no GPUDirect RDMA, so both of its mechanisms are off. NVLS needs an NVLink switch, and the search for
        # one has hung starts (NVIDIA/nccl#2167). cuMem is off as in the pair of vllm#41725.
        "NCCL_NET_GDR_LEVEL": "0",
        "NCCL_DMABUF_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CUMEM_ENABLE": "0",
        # NCCL's own threads run near the GPU, not on the CPUs to which the engine has bound its own.
        "NCCL_IGNORE_CPU_AFFINITY": "1",
    }
    if len(choice.hcas) > 1:
        # Joins HCAs of the same subnet instead of the same number since NCCL 2.30; older releases ignore it.
        common["NCCL_IB_SUBNET_AWARE_ROUTING"] = "1"
    if executor != "ray":
        return common
    return {
        **common,
        # The monitor mistakes the GPU's memory, which is the host's, for a leak and kills the worker.
        "RAY_memory_monitor_refresh_ms": "0",
        # The placement group requests node:VLLM_HOST_IP, so Ray must use that address for this node.
        "RAY_NODE_IP_ADDRESS": choice.address,
        "RAY_OVERRIDE_NODE_IP_ADDRESS": choice.address,
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _keeps_node_env(engine_version: str, engine_env: Mapping[str, str]) -> bool:
    """Return True if this engine's Ray executor keeps the variables of a worker's own node."""
    release, switch = core_engine_version.release(engine_version), engine_env.get(RAY_V2_SWITCH)
    if release >= RAY_KEEPS_NODE_ENV_SINCE:
        return switch != "0"
    return release >= RAY_V2_SWITCH_SINCE and switch == "1"
