"""The launch of a closed engine: what it has beside that of an open one, for every version of vLLM with data."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_status
from test_launch import PRINT_ARGV, SHELLCHECK

from fakes import edge_cases
from fakes.cases import CASES, build, hosts_of, resolved
from fakes.deployed_spark import deployed_facts
from vllm_spark.deploy import checks, closed_engine, files, launch, plan, ranks
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.edge import EdgeSettings
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import host_layout
from vllm_spark.recipe import engine_flags
from vllm_spark.verify import runner
from vllm_spark.verify.gates import reach

Resolve = Callable[..., Spec]
CLOSED = [case for case in CASES if case.stem.startswith("argv-closed")]


@pytest.fixture
def closed(resolve: Resolve) -> Resolve:
    """A function that resolves a deployment whose edge is closed."""

    def _closed(**fields: Any) -> Spec:
        return replace(resolve(**fields), edge=Edge("spark1", EdgeSettings(open=False)))

    return _closed


def option(spec: Spec, name: str) -> list[str]:
    return [" ".join(words[1:]) for words in launch.container_options(spec) if words[0] == name]


def ranked(case: Path, facts: dict[str, Any], folder: Path) -> Spec:
    """Return the rank of a case, as a plan has it."""
    document = json.loads(case.read_text())
    host = document.get("host", "spark1")
    specs = resolved(document, host)
    return ranks.join(specs, hosts_of(document, specs, facts, folder))[host]


@pytest.mark.parametrize("version", engine_flags.versions())
def test_every_version_knows_what_a_closed_launch_sets(version: str, closed: Resolve) -> None:
    spec = closed()
    recipe = {**spec.recipe, "engine": {"version": version}, "args": {}, "env": {}}
    spec = replace(spec, recipe=recipe)
    assert closed_engine.unknown(spec) == []
    assert closed_engine.SOCKET_FLAG in engine_flags.load(version).flags
    words = [word for group in launch.engine_command(spec) for word in group][2:]
    parsed = vars(engine_flags.parser(version).parse_args(words))
    assert parsed["uds"] == "/api/api.sock"
    assert (parsed["allowed_origins"], parsed["allowed_media_domains"]) == ([], ["none.invalid"])
    assert parsed["disable_fastapi_docs"] is True
    assert (parsed["host"], parsed["port"]) == (None, None)
    variables = engine_flags.load(version).variables
    given = {name for name in launch.environment(spec) if name.startswith("VLLM_")}
    assert {"VLLM_MAX_N_SEQUENCES", "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "VLLM_HOST_IP"} <= given
    assert not [name for name in given if name not in variables or variables[name].unread]


def test_a_version_without_a_flag_gets_none_and_the_plan_says_so(
    closed: Resolve, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = closed()
    full = engine_flags.nearest(spec.recipe["engine"]["version"])
    lacks = ("disable-fastapi-docs", "VLLM_MAX_N_SEQUENCES")
    less = replace(
        full,
        flags={name: flag for name, flag in full.flags.items() if name not in lacks},
        variables={name: one for name, one in full.variables.items() if name not in lacks},
    )
    monkeypatch.setattr(engine_flags, "nearest", lambda _: less)
    assert "disable-fastapi-docs" not in launch.flags(spec)
    assert "VLLM_MAX_N_SEQUENCES" not in launch.environment(spec)
    lines = plan.summary(spec, build(spec, facts))
    without = f"vLLM {full.version} has no"
    assert [line for line in lines if line.startswith(without)] == [
        f"{without} --disable-fastapi-docs, so this does not hold: /docs and /openapi.json are not served",
        f"{without} VLLM_MAX_N_SEQUENCES, so this does not hold: one request has at most 16 answers",
    ]


@pytest.mark.parametrize(
    ("args", "domains", "network"),
    [({}, ["none.invalid"], "none"), ({"allowed-media-domains": ["pictures.lan"]}, ["pictures.lan"], "bridge")],
)
def test_listed_domains_of_media_let_the_engine_out(
    args: dict[str, Any], domains: list[str], network: str, closed: Resolve
) -> None:
    spec = closed(overrides={"args": args})
    assert launch.flags(spec)["allowed-media-domains"] == domains
    assert option(spec, "--network") == [network]


def test_the_recipe_overrules_what_is_not_the_socket(closed: Resolve) -> None:
    spec = closed(overrides={"env": {"VLLM_MAX_N_SEQUENCES": "64"}, "args": {"disable-fastapi-docs": False}})
    assert launch.environment(spec)["VLLM_MAX_N_SEQUENCES"] == "64"
    assert launch.flags(spec)["disable-fastapi-docs"] is False
    assert launch.flags(spec)["uds"] == "/api/api.sock"
    assert not {"host", "port"} & launch.flags(spec).keys()


SECRETS = {"VLLM_API_KEY": True, "HF_TOKEN": True}


def test_a_closed_engine_checks_no_key(resolve: Resolve) -> None:
    spec, opened = resolved({"edge": {}, "secrets": SECRETS}, "spark1")["spark1"], resolve(secrets=SECRETS)
    assert not any("VLLM_API_KEY" in launch.environment(one) for one in (spec, opened))
    assert [runner.gate_request(one, "1f").api_key for one in (spec, opened)] == [False, True]
    subjects = [(one.issue_subject.bind, one.issue_subject.secrets) for one in (spec, opened)]
    assert subjects == [("127.0.0.1", ("HF_TOKEN",)), ("0.0.0.0", ("HF_TOKEN", "VLLM_API_KEY"))]  # noqa: S104


def test_a_key_that_is_not_used_reaches_nothing_on_the_host(facts: dict[str, Any]) -> None:
    """Neither the removal nor another value of it restarts a closed server."""
    having, without = (
        resolved({"edge": {}, "secrets": secrets}, "spark1")["spark1"] for secrets in (SECRETS, {"HF_TOKEN": True})
    )
    on_host = deployed_facts(having, facts)
    assert build(without, on_host).to_json() == build(having, on_host).to_json()
    assert (having.unused_secrets, without.unused_secrets) == (("VLLM_API_KEY",), ())
    values = {"HF_TOKEN": "t", "VLLM_API_KEY": "k"}
    texts = [launch.env_file(secrets, having.to_json()) for secrets in (values, {**values, "VLLM_API_KEY": "l"})]
    assert texts == [launch.env_file({"HF_TOKEN": "t"})] * 2


def test_a_key_of_the_same_name_for_a_router_stays_in_the_env_file() -> None:
    through = {"url": "http://127.0.0.1:4000", "key": "VLLM_API_KEY"}
    place = {"name": "demo", "recipe": "everything", "hosts": ["spark1"], "through": through}
    spec = resolved({"edge": {}, "secrets": SECRETS, "deployments": [place]}, "spark1")["spark1"]
    assert "VLLM_API_KEY=k" in launch.env_file({"VLLM_API_KEY": "k"}, spec.to_json())
    assert launch.environment(spec)["VLLM_API_KEY"] == ""


def test_the_gates_ask_the_socket(closed: Resolve, resolve: Resolve) -> None:
    request = runner.gate_request(closed(), "1f")
    assert request.to_json()["socket"] == "/run/vllm-spark/demo/api/api.sock"
    assert request.host_url == "unix:/run/vllm-spark/demo/api/api.sock"
    assert not reach.applies(request)
    opened = runner.gate_request(resolve(), "1f")
    assert "socket" not in opened.to_json()
    assert opened.host_url == "http://127.0.0.1:8000"
    assert reach.applies(opened)


def test_the_plan_places_what_the_programs_need(closed: Resolve, resolve: Resolve, facts: dict[str, Any]) -> None:
    spec, opened = closed(), resolve()
    planned, unchanged = build(spec, facts), build(opened, facts)
    modules = {file.path for file in files.modules()}
    for each in (planned, unchanged):
        assert modules <= {file.path for file in each.files}
        assert set(files.module_folders()) <= set(each.folders)
    assert {file.path for file in planned.files} == {file.path for file in unchanged.files}
    assert (planned.edge_group, unchanged.edge_group) == ("vllm-spark-edge", "")
    contents = {file.path: file.content for file in planned.files}
    probe, before = (json.loads(each["/etc/vllm-spark/demo/liveness.json"]) for each in (
        contents, {file.path: file.content for file in unchanged.files}))  # fmt: skip
    assert before.items() - probe.items() == {("address", "127.0.0.1"), ("port", 8000)}
    assert probe.items() - before.items() == {("socket", "/run/vllm-spark/demo/api/api.sock")}
    assert not [line for line in plan.summary(spec, planned) if "every client that reaches" in line]
    assert [line for line in plan.summary(opened, unchanged) if "every client that reaches" in line]


def test_the_facts_have_every_planned_file(closed: Resolve, facts: dict[str, Any], tmp_path: Path) -> None:
    """Otherwise no deploy would find its files installed."""
    planned = {file.path for file in build(closed(), facts).files}
    for path in planned:
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text("")
    assert planned - spark_status.files(["demo"], str(tmp_path)).keys() == set()


@pytest.mark.parametrize(("unit", "refused"), [("vllm-edge.service", []), ("nginx.service", ["port-taken"])])
def test_the_edge_may_hold_the_port_before_and_after_a_site_is_opened(
    unit: str, refused: list[str], closed: Resolve, resolve: Resolve, facts: dict[str, Any]
) -> None:
    taken = {**facts, "ports": {"8000": {"process": "haproxy", "pid": 7, "unit": unit}}}
    for spec in (closed(), resolve()):
        assert [one.id for one in checks.refusals(HostContext(spec.host, spec, taken))] == refused


@pytest.mark.parametrize("case", CLOSED, ids=lambda case: case.stem)
def test_a_shell_gets_the_planned_argv(case: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    """The programs that change the host are replaced by ones that print their arguments to a file."""
    spec = ranked(case, facts, tmp_path)
    script = launch.script(spec)
    for name in ("docker", "supervise"):
        (tmp_path / name).write_text(PRINT_ARGV.replace("docker", name, 1))
    for name in ("install", "chown", "rm", "ln", "nft"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/done\n')
    for name in os.listdir(tmp_path):
        (tmp_path / name).chmod(0o755)
    script = script.replace("exec /usr/local/lib/vllm-spark/supervise", f"exec {tmp_path}/supervise")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=env)
    argv = done.stdout.partition("\n")[2].removesuffix("\0").split("\0")
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    memory = str(total_kib * 1024 - spec.recipe["memory"].get("free_floor_bytes", 8 << 30))
    planned = [memory if word == "$memory" else word for word in launch.argv(spec)]
    assert argv == [Path(planned[0]).name, *planned[1:]]
    name, owner = spec.deployment.name, "70000:70000"
    cache = f"/var/lib/vllm-spark/cache/{name}"
    expected = [f"install --directory --mode=0700 {cache}", f"chown --recursive --no-dereference {owner} {cache}"]
    if spec.rank == 0:
        api = f"/run/vllm-spark/{name}/api"
        expected += [
            f"rm --recursive --force {api}",
            f"install --directory --group=vllm-spark-edge --mode=0710 /run/vllm-spark/{name}",
            f"install --directory --owner=70000 --group=vllm-spark-edge --mode=2710 {api}",
            f"ln --symbolic --force api/api.sock {api}.sock",
        ]
        assert f"{api}.sock" == host_layout.edge_socket(name)
    lines = (tmp_path / "done").read_text().splitlines()
    assert lines == [*(["nft --file -"] if spec.group else []), *expected]


@pytest.mark.parametrize("case", CLOSED, ids=lambda case: case.stem)
def test_shellcheck_accepts_the_script(case: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    script = launch.script(ranked(case, facts, tmp_path))
    done = subprocess.run([SHELLCHECK, "-"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_worker_has_no_socket(facts: dict[str, Any], tmp_path: Path) -> None:
    workers = [spec for case in CLOSED if (spec := ranked(case, facts, tmp_path / case.stem)).rank]
    assert len(workers) == 2
    for worker in workers:
        words = [word for group in launch.command(worker, "") for word in group]
        assert not {"--uds", "umask"} & set(words)
        assert not [word for word in words if "/api" in word]
        assert {"--read-only", "--user"} <= set(words)


def test_a_socket_is_no_setting_of_a_recipe(closed: Resolve) -> None:
    with pytest.raises(Exception, match=r"args\.uds.*vllm_edge"):
        closed(overrides={"args": {"uds": "/tmp/other.sock"}})  # noqa: S108  refused


def test_the_parser_of_the_data_refuses_what_no_engine_takes() -> None:
    """The checks above can fail: an unknown flag is refused."""
    with pytest.raises((ValueError, argparse.ArgumentError)):
        engine_flags.parser("0.21.0").parse_args(["--udsx", "/a"])


FAIR = {"open": False, "fair": True}
READS = "0.28.0"


@pytest.mark.parametrize(
    ("settings", "version", "args", "policy", "said"),
    [
        ({"open": False}, READS, {}, None, ""),
        (FAIR, READS, {}, "priority", ""),
        (FAIR, "0.33.0", {}, "priority", ""),
        (FAIR, "0.24.0", {}, None, "is vLLM 0.24.0, which reads no class. Fix: a recipe with vLLM 0.28.0 or later."),
        (FAIR, READS, {"scheduling-policy": "fcfs"}, "fcfs", "has scheduling-policy fcfs. Fix: remove"),
    ],
)
def test_a_fair_engine_takes_requests_by_their_class(
    settings: dict[str, Any], version: str, args: dict[str, Any], policy: str | None, said: str
) -> None:
    spec = edge_cases.resolved([{**edge_cases.DEMO, "overrides": {"args": args}}], settings)
    spec = replace(spec, recipe={**spec.recipe, "engine": {**spec.recipe["engine"], "version": version}})
    assert launch.flags(spec).get("scheduling-policy") == policy
    lines = [line for line in closed_engine.unknown(spec) if line.startswith("vllm_edge.fair")]
    assert [said in line for line in lines] == [True] * bool(said)
