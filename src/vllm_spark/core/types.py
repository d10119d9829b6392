"""Shapes of the documents that cross a boundary: facts of a host, records on a host, recipes.

Each shape is defined here once. Facts are what plugins/modules/spark_facts.py returns; a key that was not requested
is absent. Sizes are in bytes, times in seconds, moments in seconds since the epoch of the clock of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

# A parsed recipe file, or a part of one. recipes/schema.json defines its fields.
Document = Mapping[str, Any]


class MemoryFacts(TypedDict):
    """From /proc/meminfo. `available` counts the page cache as free."""

    total: int
    available: int
    swap_total: NotRequired[int]
    swap_free: NotRequired[int]
    page_cache: NotRequired[int]
    free: NotRequired[int]
    cma_total: NotRequired[int]
    cma_free: NotRequired[int]


class GpuFacts(TypedDict):
    """One GPU as nvidia-smi reports it. A field that the driver does not know is None."""

    name: str
    driver: str
    power_w: NotRequired[float | None]
    load_percent: NotRequired[float | None]
    sm_mhz: NotRequired[float | None]
    event_reasons: NotRequired[int | None]
    persistence: NotRequired[bool | None]


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


class DockerFacts(TypedDict):
    """The engine and the toolkit's containers. `version` is empty if the engine does not answer."""

    version: str
    error: str
    missing_python: str
    containers: Mapping[str, ContainerFacts]
    root: NotRequired[str]
    on_gpu: NotRequired[list[str]]
    disk: NotRequired[DiskFacts | None]


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


class FirmwareFacts(TypedDict):
    """Kernel setting, firmware and pending reboot of a host. `nics`: HCA -> firmware version."""

    swappiness: int | None
    bios: str | None
    nics: Mapping[str, str]
    reboot: list[str] | None


class HostFacts(FirmwareFacts):
    """Firmware, GPU processes and pending changes of a host."""

    processes: list[ProcessFacts]
    ollama: list[OllamaModel] | None


class NetdevFacts(TypedDict):
    """One network interface. Each address has the keys `address` and `prefix`."""

    name: str
    addresses: Sequence[Mapping[str, Any]]
    mtu: int
    carrier: bool
    wireless: bool
    speed_mbps: NotRequired[int | None]
    pci: NotRequired[str | None]


class FabricFacts(TypedDict):
    """The RoCE fabric of one host. `hcas` holds one mapping per HCA (plugins/module_utils/spark_fabric.py)."""

    netdevs: list[NetdevFacts]
    hcas: Sequence[Mapping[str, Any]]
    source: NotRequired[str]
    devices: list[str]
    ib_core: bool
    memlock_bytes: NotRequired[int | None]
    default_route: str | None
    error: str


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
    """deployed.json: what a deploy placed on a host. `previous` is the record of the launch before this one."""

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
    port: int
    room: Mapping[str, Any]
    accepted_known_issues: list[str]
    toolkit: str
    previous: Record | None


class LockFacts(TypedDict, total=False):
    """The operator lock of a host and its holder."""

    run: str
    user: str
    controller: str
    machine: str
    pid: int
    started: str
    verb: str
    since: float
    age_s: float
    connected: bool | None


class DeploymentStatus(TypedDict):
    """What the folder of one deployment holds, and the last results of its checks."""

    launch: str | None
    failed: Record | None
    address: Mapping[str, Any] | None
    liveness: Mapping[str, Any] | None
    judged: Mapping[str, Any] | None
    derived: NotRequired[str | None]
    counters: list[Mapping[str, float]]


class StatusFacts(TypedDict):
    """What the verb `status` reads. `files`: path -> [sha256, mode]."""

    deployments: Mapping[str, DeploymentStatus]
    files: Mapping[str, list[str]]
    lock: LockFacts | None
    env: Mapping[str, Any] | None


class Facts(TypedDict, total=False):
    """The facts of one host."""

    hostname: str
    machine: str
    kernel: str
    memory: MemoryFacts
    gpus: list[GpuFacts]
    gpu_error: str
    docker: DockerFacts
    images: Mapping[str, str | None]
    paths: Mapping[str, bool]
    checksums: Mapping[str, str | None]
    ports: Mapping[str, PortHolder]
    units: Mapping[str, Mapping[str, Any]]
    running_units: list[str]
    enabled_units: list[str]
    placed: list[str]
    records: Mapping[str, Record]
    env_mtimes: Mapping[str, float]
    states: Mapping[str, Mapping[str, Any]]
    weights: Mapping[str, WeightFacts | None]
    disks: Mapping[str, DiskFacts]
    fabric: FabricFacts
    host: HostFacts
    status: StatusFacts
    asked: ControllerInterval
    time: Interval
