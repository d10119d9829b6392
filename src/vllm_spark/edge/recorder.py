"""Who records the figures of the Sparks, and what the page of that host's edge may ask. Pure."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from vllm_spark.core import paths, templates
from vllm_spark.core.host_file import File
from vllm_spark.core.ports import ALERTS_PORT, LOOPBACK
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node import host_layout as layout

PAGE = f"{layout.METRICS_PAGE_DIR}/page.html"
# A rule of the page's queries; its name is what the page asks for.
RECORD = re.compile(r'record: "watch:(\w+)"')
INLINE = "<{0}>(.*?)</{0}>"
# What Prometheus reads of each host: job, path, which series are kept and left out, and the parts of HAProxy that it
# asks for. A series of vLLM that ends in _created has the time of its first value, and nobody asks for the others.
UNASKED = ".*_created|vllm:(iteration_tokens_total|request_params|request_max_num|mm_cache).*"
JOBS = (
    ("engine", "/metrics", "vllm:.*", UNASKED, ""),
    ("host", "/metrics/host", "(vllm_spark|node)_.*", "", ""),
    ("edge", "/metrics/edge", "haproxy_frontend_(current_sessions|http_responses_total)", "", "frontend"),
    ("route", "/metrics/route", "haproxy_server_(status|current_sessions)", "", "server"),
)


@dataclass(frozen=True, slots=True)
class Watch:
    """The page: the names of its queries, and the hashes of its script and style for the policy of the browser."""

    names: tuple[str, ...]
    script: str
    style: str


def is_recorded(edge: Edge | None) -> bool:
    """Return True for a host whose figures are recorded."""
    return bool(edge and edge.is_wanted and edge.settings.metrics_server)


def records(edge: Edge) -> bool:
    """Return True for the host that records the figures of its site."""
    return edge.is_wanted and edge.host == edge.settings.metrics_server


@lru_cache
def _watch() -> Watch:
    page, rules = templates.unchanged("metrics-page.html"), templates.unchanged(layout.METRICS_WATCH)
    script, style = (_hash(page, tag) for tag in ("script", "style"))
    return Watch(tuple(RECORD.findall(rules)), script, style)


def watch(edge: Edge) -> Watch | None:
    """Return the page of a host that records; None for any other one."""
    return _watch() if records(edge) else None


def _hash(page: str, tag: str) -> str:
    (inline,) = re.findall(INLINE.format(tag), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


def files(edge: Edge, address: str) -> Iterator[File]:
    """Yield what a host needs so that its figures are recorded, and what the host needs that records them. `address`:
    of this host, without a site."""
    if not is_recorded(edge):
        return
    yield File(layout.METRICS, (paths.NODE / "metrics.py").read_text(encoding="utf-8"), "0755")
    units = ["vllm-metrics.service", layout.METRICS_TIMER, layout.METRICS_EXPORTER]
    if records(edge):
        units += [layout.METRICS_PROMETHEUS, layout.METRICS_ALERTS]
        yield File(PAGE, templates.unchanged("metrics-page.html"))
        same = (layout.METRICS_RULES, layout.METRICS_WATCH, layout.METRICS_TELLS)
        yield from (File(path, templates.unchanged(path)) for path in same)
        yield File(layout.METRICS_CONFIG, prometheus(edge, address))
        kept = {"DAYS": edge.settings.metrics_days, "GIB": edge.settings.metrics_gib, "SPARK": edge.host}
        yield File(layout.METRICS_KEPT, "".join(f"{name}={value}\n" for name, value in kept.items()))
    yield from (File(f"{layout.UNIT_DIR}/{name}", templates.unchanged(name)) for name in units)


def prometheus(edge: Edge, address: str, places: Mapping[str, str] = {}) -> str:
    """Return prometheus.yml. `places`: of the authority, the rules and Alertmanager, for tests."""
    targets = dict(edge.settings.site) or {edge.host: address}
    serves = {edge.host: edge.backends, **{one.host: one.backends for one in edge.neighbours}}
    # One alone answers without its name.
    engines = {
        host: [one.deployment for one in backends] if len(backends) > 1 else [""] * len(backends)
        for host, backends in serves.items()
    }
    text: str = (
        templates.templates()
        .get_template("metrics-prometheus.yml.j2")
        .render(
            path=layout.METRICS_CONFIG,
            jobs=JOBS,
            targets=targets,
            engines=engines,
            port=edge.settings.metrics_port,
            **{
                "rules": f"{layout.METRICS_RULES}, {layout.METRICS_WATCH}",
                "authority": f"/run/credentials/{layout.METRICS_PROMETHEUS}/ca.crt",
                "alerts": f"{LOOPBACK}:{ALERTS_PORT}",
                **places,
            },
        )
    )
    return text
