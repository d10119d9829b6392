"""Where the Sparks tell their owner about troubles: the inventory's `vllm_notify`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vllm_spark.core.fault import Fault
from vllm_spark.core.ports import ALERTS_PORT, LOOPBACK
from vllm_spark.core.refusal import register
from vllm_spark.core.types import Document
from vllm_spark.inventory import map_variable
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node.delivery import NTFY, WEBHOOK

BAD_NOTIFY = register("bad-notify", runbook="inventory-refused")
# A login in a URL would be a secret outside of vllm_secrets.
URL = re.compile(r"https?://[\w.:\[\]-]+(?:/(?P<path>[!-~]*))?", re.ASCII)
SCHEMA = Path(__file__).with_name("notify.schema.json")


def parse(raw: object, secrets: Mapping[str, bool]) -> Document:
    """Check `vllm_notify` and return it; an empty map tells nobody. `secrets`: name in vllm_secrets -> True if it has a
    value. Raises RefusedError with every fault of it."""
    return map_variable.checked(raw, "vllm_notify", SCHEMA, partial(_faults, secrets), BAD_NOTIFY)


def settings(checked: Document, host: str, secrets: Mapping[str, str], edge: Edge | None = None) -> str:
    """Return the settings that node/notify.py reads, as JSON: `target` may be shown, `value` is the secret. With
    an edge also whom it asks."""
    more = dict(_asks(edge)) if edge else {}
    if "heartbeat" in checked:
        more["heartbeat"] = checked["heartbeat"].replace("{host}", host)
    value = {"value": str(secrets[checked["secret"]])} if "secret" in checked else {}
    return json.dumps({"kind": NTFY, **checked, **more, **value, "host": host, "target": target(checked)}, indent=2)


def _asks(edge: Edge) -> Iterator[tuple[str, Any]]:
    """Yield what a host asks beside itself: `site`, host -> a URL of its edge that needs no key, in the order in which
    they tell; `alerts`, the Alertmanager of the host that records."""
    heads = {edge.host: edge.backends, **{one.host: one.backends for one in edge.neighbours}}
    ports = {host: min(one.port for one in backends) for host, backends in heads.items() if backends}
    # A Spark that only forwards listens on the ports of all others.
    url = f"{edge.settings.scheme}://{{}}:{{}}/health"
    if edge.joins and ports:
        site, other = edge.settings.site.items(), min(ports.values())
        yield "site", {host: url.format(address, ports.get(host, other)) for host, address in site}
    if edge.is_wanted and edge.settings.metrics_server == edge.host:
        yield "alerts", f"http://{LOOPBACK}:{ALERTS_PORT}"


def target(checked: Document) -> str:
    """Return where the messages go: the program, or scheme, host and port. The path of a URL often is a secret."""
    if "command" in checked:
        return str(checked["command"][0])
    return "://".join(urlsplit(checked["url"])[:2])


def _faults(secrets: Mapping[str, bool], document: Document) -> Iterator[Fault]:
    """Yield the faults that a schema cannot express. None of them shows the URL."""
    if ("url" in document) == ("command" in document):
        found = "both url and command" if "url" in document else "neither url nor command"
        yield Fault(f"vllm_notify: it has {found}", "one of them")
    if "kind" in document and "url" not in document:
        yield Fault(f"vllm_notify.kind: {document['kind']}, without a url", "a url, or no kind")
    url = URL.fullmatch(document.get("url", "http://x/x"))
    if not (url and (url["path"] or document.get("kind") == WEBHOOK)):
        expected = "https://SERVER/TOPIC of ntfy, or an address of a webhook: ASCII, without a login"
        yield Fault("vllm_notify.url: another text, which is not shown because it may be a secret", expected)
    beat = URL.fullmatch(document.get("heartbeat", "http://x/x").replace("{host}", "host"))
    if not (beat and beat["path"]):
        expected = "an address such as https://hc-ping.com/KEY/{host}: ASCII, without a login"
        yield Fault("vllm_notify.heartbeat: another text, which is not shown because it may be a secret", expected)
    if "secret" in document and not secrets.get(document["secret"]):
        yield Fault(f"vllm_notify.secret: vllm_secrets has no value of {document['secret']}", "a secret with a value")
