"""The key of a pair's link: who needs a new one, how it reaches both hosts, and that no output contains it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import build, hosts_of, intents, resolved
from fakes.deployed_spark import deployed_facts
from fakes.recorded_hosts import HOSTS
from vllm_spark.deploy import drift, launch, plan, ranks
from vllm_spark.inventory.spec import Spec

PATH = "/etc/vllm-spark/pair/link.key"
PAIR = {
    "deployments": [{"name": "pair", "recipe": "two-sparks", "hosts": list(HOSTS)}],
    "limit": HOSTS,
    "secrets": {},
}
SAME = ["5" * 64, "0600"]


@pytest.fixture
def deployed(facts: dict[str, Any], tmp_path: Path) -> tuple[dict[str, Spec], dict[str, Any]]:
    """The specs and the facts of a pair that nothing has changed since its deploy."""
    specs = resolved(PAIR, "spark1")
    hosts = hosts_of(PAIR, specs, facts, tmp_path)
    ranked = ranks.join(specs, hosts)
    return specs, {host: deployed_facts(ranked[host], copy.deepcopy(hosts[host])) for host in HOSTS}


@pytest.mark.parametrize(
    ("keys", "renewed"),
    [
        ((SAME, SAME), False),
        ((None, None), True),
        ((SAME, None), True),
        ((SAME, ["6" * 64, "0600"]), True),
        ((["5" * 64, "0644"], ["5" * 64, "0644"]), True),
    ],
)
def test_hosts_without_one_secret_key_get_a_new_one(
    deployed: tuple[dict[str, Spec], dict[str, Any]], keys: tuple[list[str] | None, ...], renewed: bool
) -> None:
    specs, hosts = deployed
    for host, key in zip(HOSTS, keys, strict=True):
        hosts[host]["files"].pop(PATH)
        hosts[host]["files"] |= {PATH: key} if key else {}
    for host in HOSTS:
        planned, _ = plan.of_host(intents(specs), hosts, host, "test")
        assert (planned.link_path, planned.link_head) == (PATH, "spark1" if renewed else "")
        assert planned.installed is not renewed
        # A running pair keeps its key until its next start.
        assert planned.settled
        reasons = drift.of_host(intents(specs), hosts, host, "test").reasons
        assert reasons == (("link.key: the Sparks of the pair do not have one key",) if renewed else ())


def test_a_deployment_on_one_host_has_no_key(facts: dict[str, Any]) -> None:
    specs = resolved({}, "spark1")
    planned = build(specs["spark1"], facts)
    assert (planned.link_path, planned.link_head) == ("", "")


def test_the_key_is_not_a_part_of_the_launch(deployed: tuple[dict[str, Spec], dict[str, Any]]) -> None:
    specs, hosts = deployed
    for host, spec in ranks.join(specs, hosts).items():
        planned, _ = plan.of_host(intents(specs), hosts, host, "test")
        assert "link.key" not in launch.script(spec)
        assert PATH not in [file.path for file in planned.files]


def test_changed_modules_of_the_supervisor_are_one_name(deployed: tuple[dict[str, Spec], dict[str, Any]]) -> None:
    specs, hosts = deployed
    modules = [path for path in hosts["spark1"]["files"] if path.startswith("/usr/local/lib/vllm-spark/pair/")]
    assert len(modules) > 5
    hosts["spark1"]["files"] |= {path: ["0", "0644"] for path in modules}
    assert drift.of_host(intents(specs), hosts, "spark1", "test").reasons == ("files: supervise",)
