"""A launch that somebody has edited on its Spark, and settings that only a start reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import intents, pair_of
from fakes.deployed_spark import STARTED, deployed_facts, launch_found
from vllm_spark.deploy import drift, launch, plan, ranks, unit_state
from vllm_spark.deploy.plan import Plan, Purpose
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import launch_difference

Resolve = Callable[..., Spec]
LATER, EARLIER = STARTED + 10, STARTED - 10


def planned(spec: Spec, facts: dict[str, Any], *, acts: bool = True) -> tuple[Plan, list[str]]:
    return plan.of_host(intents({"spark1": spec}), {"spark1": facts}, "spark1", "test", Purpose(acts=acts))


def edited(spec: Spec, facts: dict[str, Any], change: tuple[str, str], at: float) -> dict[str, Any]:
    """Return the facts of a Spark whose launch was changed with an editor at a time."""
    script = launch.script(spec)
    edit = script.replace(*change)
    assert edit != script
    path = f"{spec.config_dir}/launch"
    facts["launches"] = {"demo": launch_found(script, edit, at)}
    facts["files"][path] = ["0" * 64, "0755"]
    return facts


SEQUENCES = ("--max-num-seqs 5", "--max-num-seqs 3")


@pytest.fixture
def spec(resolve: Resolve) -> Spec:
    return resolve(overrides={"args": {"max-num-seqs": 5}})


@pytest.mark.parametrize(("acts", "word"), [(True, "will be"), (False, "would be")])
def test_an_edit_that_never_ran_is_put_back_with_a_line(
    spec: Spec, facts: dict[str, Any], acts: bool, word: str
) -> None:
    host = edited(spec, deployed_facts(spec, facts), SEQUENCES, LATER)
    found, lines = planned(spec, host, acts=acts)
    assert (found.settled, found.installed, found.keep_as) == (True, False, "")
    assert f"its launch was edited by hand, and {word} put back: --max-num-seqs 3 → 5" in lines
    assert "stays, it runs as planned" in lines[0]


def test_a_server_that_runs_an_edit_is_restarted_with_that_reason(spec: Spec, facts: dict[str, Any]) -> None:
    host = edited(spec, deployed_facts(spec, facts), SEQUENCES, EARLIER)
    found, lines = planned(spec, host)
    assert (found.state, found.reason, found.settled) == ("restarted", unit_state.EDITED, False)
    assert lines[0].endswith("will be restarted, it runs a launch that was edited by hand")
    assert lines[1] == "its launch was edited by hand, and will be put back: --max-num-seqs 3 → 5"


@pytest.mark.parametrize("change", [("# By hand:", "# By me:"), ("set -eu\n", "set -eu\nsync\n")])
def test_an_edit_that_no_server_notices_restarts_nothing(
    spec: Spec, facts: dict[str, Any], change: tuple[str, str]
) -> None:
    found, lines = planned(spec, edited(spec, deployed_facts(spec, facts), change, EARLIER))
    assert found.settled
    assert "its launch was edited by hand, and will be put back: the same command" in lines


def test_the_drift_says_that_it_was_edited(spec: Spec, facts: dict[str, Any]) -> None:
    host = edited(spec, deployed_facts(spec, facts), SEQUENCES, EARLIER)
    reasons = drift.of_host(intents({"spark1": spec}), {"spark1": host}, "spark1", "test").reasons
    assert reasons == ("launch, edited by hand", f"vllm@demo.service would be restarted: {unit_state.EDITED}")


def test_the_launch_before_is_the_one_that_ran(resolve: Resolve, spec: Spec, facts: dict[str, Any]) -> None:
    """After a change of the inventory a rollback returns to what ran: the edit, or what was deployed."""
    other = resolve(overrides={"args": {"max-num-seqs": 2}})
    for at, unedit in ((LATER, True), (EARLIER, False)):
        host = edited(spec, deployed_facts(spec, facts), SEQUENCES, at)
        host["judged"] = {
            "demo": {"launch": launch.fingerprint(spec), "holds": True, "held": [launch.fingerprint(spec)]}
        }
        found, lines = planned(other, host)
        assert (found.keep_as, found.unedit, found.on_host.ran) == ("previous", unedit, not unedit)
        assert "its launch was edited by hand, and will be put back: --max-num-seqs 3 → 2" in lines
    host["docker"]["containers"] = {}
    assert planned(other, host)[0].unedit is False  # nobody knows what ran


def test_a_restart_says_what_changed(resolve: Resolve, spec: Spec, facts: dict[str, Any]) -> None:
    other = resolve(overrides={"args": {"max-num-seqs": 2}})
    _, lines = planned(other, deployed_facts(spec, facts), acts=False)
    assert lines[0].endswith("would be restarted, its launch changed: --max-num-seqs 5 → 2")


def deadline(resolve: Resolve, seconds: int) -> Spec:
    return resolve(overrides={"gates": {"ready": {"deadline_s": seconds}}})


def with_env(spec: Spec, **env: str) -> Spec:
    return replace(spec, recipe={**spec.recipe, "env": {**spec.recipe.get("env", {}), **env}})


def with_site(spec: Spec, **site: bool) -> Spec:
    return replace(spec, site=replace(spec.site, **site))


CHANGES: dict[str, tuple[Callable[[Spec], Spec], str]] = {
    "a wait of the engine": (
        lambda spec: with_env(spec, VLLM_ENGINE_READY_TIMEOUT_S="901"),
        "--env VLLM_ENGINE_READY_TIMEOUT_S 901 is added",
    ),
    "a wait of the hub": (lambda spec: with_env(spec, HF_HUB_ETAG_TIMEOUT="9"), "--env HF_HUB_ETAG_TIMEOUT 9 is added"),
    "swap": (lambda spec: with_site(spec, swap_off=True), "vllm_swap_off"),
    "caches": (lambda spec: with_site(spec, drop_caches=True), "vllm_drop_caches"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_setting_that_only_a_start_reads_restarts_no_server(name: str, spec: Spec, facts: dict[str, Any]) -> None:
    change, said = CHANGES[name]
    host = deployed_facts(spec, facts)
    found, lines = planned(change(spec), host)
    assert (found.settled, found.installed, found.keep_as) == (True, False, "")
    assert "stays, it runs as planned" in lines[0]
    assert f"takes effect at the next start: {said}" in lines
    assert found.gates["launch"] == launch.fingerprint(spec)
    assert f"would take effect at the next start: {said}" in planned(change(spec), host, acts=False)[1]
    # With another change it is a restart.
    both = replace(change(spec), recipe={**change(spec).recipe, "args": {**spec.recipe["args"], "max-num-seqs": 2}})
    assert planned(both, host)[0].reason == unit_state.LAUNCH_CHANGED


def test_a_longer_deadline_restarts_no_server_and_goes_on_so(resolve: Resolve, facts: dict[str, Any]) -> None:
    """300 -> 900 -> 1200: the server of the first launch runs on, and its fingerprint stays."""
    first = deadline(resolve, 300)
    host = deployed_facts(first, facts)
    fingerprint = launch.fingerprint(first)
    for seconds in (900, 1200):
        wanted = deadline(resolve, seconds)
        assert launch.lines_hash(wanted) != fingerprint
        found, lines = planned(wanted, host)
        assert (found.settled, found.gates["launch"]) == (True, fingerprint)
        assert any("VLLM_ENGINE_READY_TIMEOUT_S" in line and f"{seconds}" in line for line in lines)
        # What this deploy writes is there for the next one.
        written = next(file.content for file in found.files if file.path.endswith("/launch"))
        assert f"VLLM_ENGINE_READY_TIMEOUT_S={seconds}" in written
        assert f"vllm-spark.launch={fingerprint}" in written
        host["launches"] = {"demo": launch_found(written)}
    assert not any("next start" in line for line in planned(deadline(resolve, 1200), host)[1])


def test_the_floor_of_a_closed_engine_restarts_no_server() -> None:
    script = "#!/bin/sh\nmemory=$(($(awk '/^MemTotal:/ {print $2}' /proc/meminfo) * 1024 - 8))\nexec docker run\n"
    other = script.replace("- 8)", "- 9)")
    assert launch_difference.standing(script) == launch_difference.standing(other)
    starts = [launch_difference.of_start(text) for text in (script, other)]
    assert launch_difference.next_start(*starts) == ["the memory that the host keeps"]


def test_a_launch_of_the_first_release_keeps_its_fingerprint(spec: Spec, facts: dict[str, Any]) -> None:
    """Its record has the hash of all lines, and a host of it has no other file."""
    host = deployed_facts(spec, facts)
    assert host["records"]["demo"]["launch"] == launch.lines_hash(spec)
    (same,) = ranks.join({"spark1": spec}, {"spark1": host}).values()
    assert launch.fingerprint(same) == launch.lines_hash(spec)
    del host["launches"]
    (unknown,) = ranks.join({"spark1": spec}, {"spark1": host}).values()
    assert launch.fingerprint(unknown) == launch.lines_hash(spec)


def test_both_ranks_of_a_pair_keep_one_fingerprint(facts: dict[str, Any], tmp_path: Path) -> None:
    specs, hosts = pair_of(facts, tmp_path)
    ranked = ranks.join(specs, hosts)
    hosts = {host: deployed_facts(spec, hosts[host]) for host, spec in ranked.items()}
    longer = {host: with_env(spec, VLLM_ENGINE_READY_TIMEOUT_S="5000") for host, spec in specs.items()}
    (before,) = {launch.fingerprint(spec) for spec in ranked.values()}
    assert {launch.fingerprint(spec) for spec in ranks.join(longer, hosts).values()} == {before}
    for host in longer:
        found, lines = plan.of_host(intents(longer), hosts, host, "test", Purpose(acts=True))
        assert found.settled
        assert any(line.startswith("takes effect at the next start: ") for line in lines)
    # One rank that differs in more changes the launch of both.
    hosts["spark2"]["launches"]["pair"]["deployed"] = "0" * 64
    (after,) = {launch.fingerprint(spec) for spec in ranks.join(longer, hosts).values()}
    assert after != before
    hosts["spark2"]["launches"] = hosts["spark1"]["launches"]
    hosts["spark2"]["records"]["pair"]["launch"] = "1" * 64
    assert {launch.fingerprint(spec) for spec in ranks.join(longer, hosts).values()} == {after}
