"""Reference Sparks for commands without a host: idle, and cabled as in NVIDIA's instructions."""

from __future__ import annotations

from vllm_spark.core.types import FabricFacts, Facts, MemoryFacts
from vllm_spark.core.units import GIB
from vllm_spark.node.supervise.rank import MOST_RANKS

HOSTS = tuple(f"spark{number}" for number in range(1, MOST_RANKS + 1))

# The total that CUDA reports on a Spark (121.7 GiB), and the part that is available without a desktop.
MEMORY: MemoryFacts = {"total": 130663706624, "available": 120259084288}

# What the firmware and an idle host without a desktop keep of a Spark of 128 GB: 5 % and 9.7 GiB. There is no public
# record of a Spark of 64 GB, so its figures are estimated by the same share and the same amount.
USABLE_SHARE = MEMORY["total"] / (128 * GIB)
HOST_BYTES = MEMORY["total"] - MEMORY["available"]
# Sizes of Sparks in GB (build.nvidia.com/spark/vllm-cluster: "two 64GB Sparks or two 128GB").
SIZES_GB = (64, 128)


def memory(size_gb: int) -> MemoryFacts:
    """Return the memory of an idle Spark of this size, estimated but for 128 GB."""
    total = int(size_gb * GIB * USABLE_SHARE)
    return {"total": total, "available": total - HOST_BYTES}


def facts(nodes: int, size_gb: int) -> dict[str, Facts]:
    """Return the facts of idle Sparks of this size, by names that no host of an inventory has."""
    names = ["a reference Spark"] if nodes == 1 else [f"reference Spark {number}" for number in range(1, nodes + 1)]
    return {name: {"memory": memory(size_gb)} for name in names}


# The two lanes of one cable or of a switch as in NVIDIA's connect-two-sparks: netdev, HCA, PCI address, subnet.
LANES = (
    ("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", "192.168.177"),
    ("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", "192.168.178"),
)

PCI_SPEED = "32.0 GT/s PCIe"


def fabric(host: str) -> FabricFacts:
    """Return the fabric facts of one of HOSTS, in the form of plugins/module_utils/spark_fabric.py."""
    number = 10 + HOSTS.index(host)
    return {
        "netdevs": [
            {
                "name": netdev,
                "addresses": [{"address": f"{subnet}.{number}", "prefix": 24}],
                "mtu": 9000,
                "carrier": True,
                "wireless": False,
            }
            for netdev, _, _, subnet in LANES
        ],
        "hcas": [
            {
                "name": hca,
                "netdev": netdev,
                "state": "ACTIVE",
                "rate": "200 Gb/sec (4X HDR)",
                "pci": pci,
                "pci_width": 4,
                "pci_max_width": 4,
                "pci_speed": PCI_SPEED,
                "pci_max_speed": PCI_SPEED,
                "gids": [{"index": 3, "type": "RoCE v2", "address": f"{subnet}.{number}"}],
                "gids_from": "sysfs",
            }
            for netdev, hca, pci, subnet in LANES
        ],
        "devices": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"],
        "ib_core": True,
        "default_route": None,
        "error": "",
    }
