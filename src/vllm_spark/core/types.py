"""Shapes of the documents that cross a boundary: facts of a host, records on a host, recipes.

Each shape is defined here once. Facts are what plugins/modules/spark_facts.py returns; a key that was not requested
is absent. Sizes are in bytes, times in seconds, moments in seconds since the epoch of the clock of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

# A document that a schema or an argument spec defines, or a part of one: a recipe (recipes/schema.json), an entry of
# the inventory, the arguments of an action plugin.
Document = Mapping[str, Any]


class MemoryFacts(TypedDict):
    """The memory from /proc/meminfo, in bytes. `available` counts the page cache as free."""

    total: int
    available: int
    free: NotRequired[int]
    swap_total: NotRequired[int]
    swap_free: NotRequired[int]
    page_cache: NotRequired[int]
    cma_total: NotRequired[int]
    cma_free: NotRequired[int]


class GpuFacts(TypedDict, total=False):
    """One GPU as nvidia-smi reports it. A field that the driver does not know is None."""

    name: str
    driver: str
    power_w: float | None
    load_percent: float | None
    sm_mhz: float | None
    event_reasons: int | None
    persistence: bool | None


class ContainerFacts(TypedDict):
    """One container of the toolkit, running or not."""

    id: str
    image: str
    image_id: str
    labels: Mapping[str, str]
    state: str
    started: float


class DiskFacts(TypedDict):
    total: int
    free: int


class CdiFacts(TypedDict, total=False):
    """How Docker can give the GPU to a container by CDI. `enabled`: Docker reads CDI files. `file` is the one that
    describes nvidia.com/gpu=all, empty if there is none, and `missing` the first path of this host that it names and
    that does not exist."""

    enabled: bool
    file: str
    missing: str


class DockerFacts(TypedDict, total=False):
    """The engine and the toolkit's containers.

    `version` is empty if the engine does not answer. `cgroups` is its cgroup driver: systemd or cgroupfs. `store` is
    the image store: overlay2, or "overlayfs (containerd)". `containerd_root` is set if containerd keeps the images.
    """

    version: str
    error: str
    containers: Mapping[str, ContainerFacts]
    cdi: CdiFacts
    cgroups: str
    root: str
    store: str
    on_gpu: list[str]
    disk: DiskFacts | None
    containerd_root: str | None
    containerd_disk: DiskFacts | None


class PortHolder(TypedDict):
    """The process that listens on a port."""

    process: str
    pid: int
    container: NotRequired[str | None]
    unit: NotRequired[str | None]


class ProcessFacts(TypedDict):
    """A process that computes on the GPU. `bytes` is None if the driver does not report it."""

    process: str
    pid: int
    bytes: int | None
    container: NotRequired[str | None]
    unit: NotRequired[str | None]


class OllamaModel(TypedDict):
    name: str
    bytes: int


class FirmwareFacts(TypedDict, total=False):
    """Kernel setting, firmware and pending reboot of a host. `nics`: HCA -> firmware version."""

    swappiness: int | None
    bios: str | None
    nics: Mapping[str, str]
    reboot: list[str] | None


class InputRules(TypedDict):
    """The policy of the chain INPUT, empty if unknown, and the netdevs on which every connection is accepted."""

    policy: str
    open_netdevs: list[str]


class FirewallFacts(InputRules):
    """The firewalls of a host that are not the toolkit's. `ufw` and `firewalld` are true if they are switched on."""

    ufw: bool
    firewalld: bool


class HostFacts(FirmwareFacts, total=False):
    """Firmware, GPU processes, firewall and pending changes of a host."""

    firewall: FirewallFacts
    processes: list[ProcessFacts]
    ollama: list[OllamaModel] | None


class AddressFacts(TypedDict):
    """An IPv4 address and the length of its prefix."""

    address: str
    prefix: int


class NetdevFacts(TypedDict):
    """One network interface of the kernel."""

    name: str
    addresses: list[AddressFacts]
    mtu: int | None
    carrier: bool
    wireless: bool
    mac: NotRequired[str]
    pci: NotRequired[str | None]
    # The bond or bridge that it is part of, or an empty text.
    master: NotRequired[str]


class GidFacts(TypedDict):
    """An entry of an HCA's GID table. `type` is the kernel's name, for example "RoCE v2"."""

    index: int
    type: str
    address: str


class HcaFacts(TypedDict):
    """One RDMA device. `gids_from` is the source of its GIDs: sysfs, show_gids, or empty if none could be read."""

    name: str
    netdev: str | None
    state: str
    rate: str
    pci: str | None
    pci_width: int | None
    pci_max_width: int | None
    pci_speed: str
    pci_max_speed: str
    gids: list[GidFacts]
    gids_from: str


class FabricFacts(TypedDict):
    """The RoCE fabric of one host, as plugins/module_utils/spark_fabric.py reads it. `default_route` is a netdev,
    `hotplug` is true if DGX OS powers the ConnectX-7 down while it has no cable."""

    netdevs: list[NetdevFacts]
    hcas: list[HcaFacts]
    devices: list[str]
    ib_core: bool
    default_route: str | None
    hotplug: NotRequired[bool]
    # Who is at the other end of a netdev's cable (plugins/module_utils/spark_lldp.py). None: no lldpd runs on the host.
    neighbours: NotRequired[list[dict[str, str]] | None]
    error: NotRequired[str]


class NetplanFileFacts(TypedDict):
    """One netplan file. `netdevs` are the interfaces that it configures, `more` its other sections, `error` says why
    netplan cannot read it. `profiles` are UUIDs of NetworkManager's profiles, `unbound` those without a netdev."""

    path: str
    netdevs: list[str]
    more: list[str]
    profiles: NotRequired[list[str]]
    unbound: NotRequired[list[str]]
    error: str


class NetplanFacts(TypedDict):
    """The facts of plugins/modules/spark_netplan.py. `netplan` is the path of the program or empty, `reached_by` the
    netdev that carries this connection."""

    netplan: str
    reached_by: str | None
    files: list[NetplanFileFacts]


class WeightFacts(TypedDict):
    """A model folder by its safetensors headers. `tensors`: name with numbers replaced by `*` -> dtype -> bytes."""

    files: int
    bytes: int
    tensors: Mapping[str, Mapping[str, int]]
    error: str


class Interval(TypedDict):
    """Two moments of one clock."""

    began: float
    ended: float


class ControllerInterval(TypedDict):
    """The moments of the controller's clock between which the facts were read."""

    before: float
    after: float


class Record(TypedDict, total=False):
    """deployed.json: what a deploy placed on a host. `previous` is the record of the launch before this one.

    `open`: whether the engine is on the network; records of older toolkits lack it. `beside`: the deployments whose
    budgets fit on the Spark together with this one; absent for one that is alone there."""

    deployment: str
    rank: int
    recipe: str
    recipe_sha256: str
    image: str
    digest: str
    derived: Mapping[str, str]
    engine: str
    model: str
    launch: str
    launch_sha256: str
    port: int
    open: bool
    room: Mapping[str, Any]
    beside: list[str]
    accepted_known_issues: list[str]
    toolkit: str
    previous: Record | None


class JudgedFacts(TypedDict):
    """The history of one deployment. `launch` and `holds` are those of its last entry, empty and False without one;
    `held` has the fingerprints of all launches that once passed their gates."""

    launch: str
    holds: bool
    held: list[str]


class DeploymentStatus(TypedDict):
    """The contents of the folder of one deployment, and the last results of its checks."""

    launch: str | None
    failed: Record | None
    address: Mapping[str, Any] | None
    liveness: Mapping[str, Any] | None
    judged: Mapping[str, Any] | None
    derived: NotRequired[str | None]
    counters: list[Mapping[str, float]]
    journal: NotRequired[list[str]]  # its last lines, if the deployment has failed


class EnvFacts(TypedDict):
    """The env file of a deployment compared with the desired one: names of variables, never a value."""

    added: list[str]
    removed: list[str]
    changed: list[str]
    same: bool


class StatusFacts(TypedDict):
    """The facts of the verb `status`. `lock` is the holder of the operator lock (module_utils/spark_lock.py), `lease`
    what node/lease.py reads."""

    deployments: Mapping[str, DeploymentStatus]
    lock: Mapping[str, Any] | None
    lease: NotRequired[Mapping[str, Any] | None]


class EdgeFacts(TypedDict):
    """The edge of a host. `program`: HAProxy is installed. `files`: path -> [sha256, mode]. `certificate`: its PEM with
    the chain; `names_certificate`: that of names alone; `authority`: that of the authorities that it trusts. `keys`:
    the persons that have one; `key_hashes`: SHA-256 of a key -> its entry (node/edge_key.py); `may_switch`, `batch`:
    the persons with that right, and of that class. `unit`: properties of systemd; `route`, `switch`: those of the units
    of the second stage and of what starts models. `haproxy`: version, changelog_names_fix (edge/version.py) and
    `outdated`, the units whose process is older."""

    program: bool
    account: bool
    files: Mapping[str, list[str]]
    certificate: str
    names_certificate: str
    authority: str
    keys: list[str]
    key_hashes: Mapping[str, str]
    may_switch: list[str]
    batch: list[str]
    unit: Mapping[str, str]
    route: Mapping[str, str]
    switch: Mapping[str, str]
    haproxy: Mapping[str, Any]


class TableFacts(TypedDict):
    """The firewall table of a host. `program`: nft is installed. `files`: path -> [sha256, mode]. `unit`: properties of
    systemd. `loaded`: the kernel has the table. `ssh_ports`: those of the host's sshd."""

    program: bool
    files: Mapping[str, list[str]]
    unit: Mapping[str, str]
    loaded: bool
    ssh_ports: list[int]


class Facts(TypedDict, total=False):
    """The facts of one host. `images`: name -> identity (spark_docker.identity), None for an absent image."""

    hostname: str
    machine: str
    kernel: str
    memory: MemoryFacts
    gpus: list[GpuFacts]
    gpu_error: str
    docker: DockerFacts
    images: Mapping[str, str | None]
    paths: Mapping[str, bool]
    # The requested folders that exist.
    folders: list[str]
    # Path -> [sha256, mode] of each file of the toolkit.
    files: Mapping[str, list[str]]
    checksums: Mapping[str, str | None]
    # Requested model folder -> the first file or folder in it that only some users may read; None if all may.
    unreadable: NotRequired[Mapping[str, str | None]]
    # Requested model folder -> the first file in it that leads out of the folder of its repository; None if none does.
    outside: NotRequired[Mapping[str, str | None]]
    ports: Mapping[str, PortHolder]
    units: Mapping[str, Mapping[str, Any]]
    running_units: list[str]
    enabled_units: list[str]
    placed: list[str]
    records: Mapping[str, Record]
    judged: Mapping[str, JudgedFacts]
    # Path of a deployed.json that cannot be used -> why.
    broken_records: NotRequired[Mapping[str, str]]
    env_mtimes: Mapping[str, float]
    env: EnvFacts
    states: Mapping[str, Mapping[str, Any]]
    # Deployment -> its launch on the host, where it has one (plugins/module_utils/spark_status.py, Present).
    launches: NotRequired[Mapping[str, Mapping[str, Any]]]
    weights: Mapping[str, WeightFacts | None]
    disks: Mapping[str, DiskFacts]
    fabric: FabricFacts
    edge: EdgeFacts
    table: TableFacts
    host: HostFacts
    status: StatusFacts
    controller_time: ControllerInterval
    time: Interval
