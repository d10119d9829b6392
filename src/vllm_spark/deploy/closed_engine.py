"""What the launch of an engine has beside its recipe while the edge is closed. Pure.

The engine then listens on a unix socket, and its container has as few rights as it needs.
docs/decisions/0014-a-closed-engine.md has the reasons, and a link to the facts about each version of vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_spark.core.container_layout import API_IN_CONTAINER, SCRATCH_IN_CONTAINER
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.templates import ShellVariable
from vllm_spark.inventory.spec import ENGINE_KEY, Spec
from vllm_spark.node import host_layout
from vllm_spark.recipe import conditions, engine_flags
from vllm_spark.recipe.flag_argv import OptionArgv

SOCKET_FLAG = "uds"
MEDIA_DOMAINS = "allowed-media-domains"

# Threads count as processes. On two CPU cores the head of a pair over Ray has 259 (decision 14); cores add threads, and
# so does a compilation by ninja and nvcc.
PIDS_LIMIT = 8192
# JIT compilers load the libraries that they write here, so the mount may execute.
TMPFS = f"{SCRATCH_IN_CONTAINER}:rw,exec,nosuid,nodev,size=4g,mode=1777"
# The variable of the launch script with the bytes that the container may use.
MEMORY = ShellVariable("$memory")
# The engine creates its socket with the mode that its umask leaves (create_server_unix_socket binds and does no more),
# and a connection needs the right to write. So the group of the folder may connect, and nobody else.
UMASK = "0007"


# With vllm_edge.fair the engine takes requests by the class of their key: a header, which it reads since this version.
POLICY, BY_CLASS = "scheduling-policy", "priority"
READS_CLASS = "0.28.0"


@dataclass(frozen=True, slots=True)
class Hardening:
    """A flag or a variable that a closed engine gets, unless its recipe sets it or its version does not know it."""

    name: str
    value: object
    why: str


FLAGS = (
    Hardening("allowed-origins", "[]", "no web page of another origin may use the API"),
    Hardening("disable-fastapi-docs", True, "/docs and /openapi.json are not served"),
    # An empty list allows every domain. A name below .invalid never resolves (RFC 6761).
    Hardening(MEDIA_DOMAINS, ["none.invalid"], "media come as data URLs only: the engine fetches none"),
)
VARIABLES = (
    Hardening("VLLM_MAX_N_SEQUENCES", "16", "one request has at most 16 answers"),
    Hardening("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0", "an allowed domain cannot redirect to another one"),
)
# Without a network the engine would ask for its own address in vain, and take 0.0.0.0 with a warning.
ALONE = Hardening("VLLM_HOST_IP", LOOPBACK, "the engine has no address but loopback")


def is_closed(spec: Spec) -> bool:
    """Return True if the engine of this rank is not on the network."""
    return not spec.open


def serves(spec: Spec) -> bool:
    """Return True if this rank has the socket of a closed engine."""
    return is_closed(spec) and spec.rank == 0


def flags(spec: Spec) -> dict[str, object]:
    """Return the flags that the recipe may overrule."""
    known = _engine(spec).flags
    found = {one.name: one.value for one in FLAGS if one.name in known}
    return found | ({POLICY: BY_CLASS} if spec.edge.settings.fair and _reads_class(spec) else {})


def address(spec: Spec) -> dict[str, object]:
    """Return the flag with the socket; nothing for a rank without an API."""
    return {SOCKET_FLAG: f"{API_IN_CONTAINER}/api.sock"} if serves(spec) else {}


def environment(spec: Spec) -> dict[str, str]:
    """Return the variables that the recipe may overrule. An empty API key switches the engine's own check off: the mode
    of the socket guards it, and the edge checks the keys of clients."""
    known = _engine(spec).variables
    # A number without a name in the image: torch, vLLM and Ray ask for the name of their user.
    env = {"HOME": SCRATCH_IN_CONTAINER, "USER": "vllm"}
    env |= {one.name: str(one.value) for one in _variables(spec) if one.name in known}
    return {**env, **({ENGINE_KEY: ""} if ENGINE_KEY in spec.secrets else {})}


def unknown(spec: Spec) -> list[str]:
    """Return a line for each flag and variable that this version of the engine does not have."""
    if not is_closed(spec):
        return []
    engine = _engine(spec)
    missing = [
        *((f"--{one.name}", one.why) for one in FLAGS if one.name not in engine.flags),
        *((one.name, one.why) for one in _variables(spec) if one.name not in engine.variables),
    ]
    lines = [f"vLLM {engine.version} has no {name}, so this does not hold: {why}" for name, why in missing]
    return [*lines, *_unfair(spec)]


def _unfair(spec: Spec) -> Iterator[str]:
    """Yield a line about an engine that does not take requests by their class although vllm_edge.fair is true."""
    policy = spec.recipe["args"].get(POLICY, BY_CLASS)
    if not spec.edge.settings.fair or (policy == BY_CLASS and _reads_class(spec)):
        return
    why, fix = f"has {POLICY} {policy}", f"remove {POLICY} from its args."
    if not _reads_class(spec):
        version = spec.recipe["engine"]["version"]
        why, fix = f"is vLLM {version}, which reads no class", f"a recipe with vLLM {READS_CLASS} or later."
    yield (
        "vllm_edge.fair: batch has a share of the engine and waits for it at the edge, but within the engine it is not "
        f"behind others: {spec.deployment.name} {why}. Fix: {fix}"
    )


def _reads_class(spec: Spec) -> bool:
    return conditions.version_matches({"since": READS_CLASS}, spec.recipe["engine"]["version"])


def options() -> Iterator[OptionArgv]:
    """Yield the options of `docker run` that take rights from the container."""
    user = str(host_layout.ENGINE_USER)
    yield ("--cap-drop", "ALL")
    yield ("--memory", MEMORY)
    # The same value: the container does not swap.
    yield ("--memory-swap", MEMORY)
    yield ("--pids-limit", str(PIDS_LIMIT))
    yield ("--read-only",)
    yield ("--tmpfs", TMPFS)
    yield ("--user", f"{user}:{user}")


def network(spec: Spec) -> str:
    """Return the network of the container. The ranks of a pair meet over the fabric of their hosts. A recipe that lists
    domains of media lets its engine out, behind Docker's address translation and without a published port."""
    if spec.group or not is_closed(spec):
        return "host"
    return "bridge" if spec.recipe["args"].get(MEDIA_DOMAINS) else "none"


def mounts(spec: Spec) -> Iterator[tuple[str, str, bool]]:
    """Yield (source on the host, target in the container, read-only)."""
    if serves(spec):
        yield (host_layout.api_folder(spec.deployment.name), API_IN_CONTAINER, False)


def _variables(spec: Spec) -> tuple[Hardening, ...]:
    return VARIABLES if spec.group else (*VARIABLES, ALONE)


def _engine(spec: Spec) -> engine_flags.Engine:
    """Return what the version of the recipe knows; of a version without data, what the one before it knows."""
    return engine_flags.nearest(spec.recipe["engine"]["version"])
