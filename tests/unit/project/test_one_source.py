"""One fact, one place: what a program of a host or a constant text has to repeat is held to the module that owns it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_launches, spark_status

from vllm_spark.core import container_layout, paths, ports
from vllm_spark.edge import answers, config, persons, steps
from vllm_spark.inventory import deployment
from vllm_spark.inventory.spec import SiteSettings
from vllm_spark.node import (
    deployment_state,
    edge_admin,
    edge_quota,
    edge_switch,
    engine_api,
    host_layout,
    image_build,
    launch_difference,
    lease,
    notify,
    switch,
    unit_limits,
    unix_http,
)
from vllm_spark.node.bench import observation
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.pull import model_files, upstream
from vllm_spark.node.supervise import attempt, server_wait
from vllm_spark.recipe import image_name, lockfile
from vllm_spark.verify.gates import failover

NAMES = json.loads(deployment.SCHEMA.read_text())["items"]["properties"]["name"]


def unit_value(unit: str, key: str) -> str:
    """Return the only value of a key in a unit of templates/."""
    (value,) = re.findall(rf"^{key}=(.*)$", (paths.TEMPLATES / unit).read_text(), re.MULTILINE)
    return str(value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("StartLimitBurst", unit_limits.MAX_UNIT_STARTS),
        ("StartLimitIntervalSec", unit_limits.WITHIN_S),
        ("SuccessExitStatus", attempt.STOPPED),
        ("RestartPreventExitStatus", unit_limits.NO_RESTART),
        # docker stop, and what follows it in a supervisor.
        ("TimeoutStopSec", unit_limits.STOP_TIMEOUT_S + unit_limits.AFTER_STOP_S),
    ],
)
def test_the_unit_has_the_limits_that_programs_count_with(key: str, value: int) -> None:
    assert unit_value("vllm@.service", key) == str(value)


def test_the_unit_says_how_long_a_good_start_serves() -> None:
    text = (paths.TEMPLATES / "vllm@.service").read_text()
    assert unit_limits.GOOD_S == 5 * 60
    assert "A start\n# that served for five minutes resets the count" in text
    assert f"test $$? -ne {unit_limits.NO_RESTART}'" in text
    # The longest pause passes before the launch, and more.
    assert int(unit_value("vllm@.service", "TimeoutStartSec")) >= unit_limits.LONGEST_PAUSE_S + 60


# Programs that a Spark gets as one file, and modules whose link in module_utils can import no other one.
@pytest.mark.parametrize(
    ("copy", "owner"),
    [
        (edge_switch.CONFIG_DIR, host_layout.CONFIG_DIR),
        (edge_switch.LIST, host_layout.EDGE_SWITCH_LIST),
        (edge_switch.SOCKET, host_layout.EDGE_SWITCH_SOCKET),
        (edge_switch.ROOT_SOCKET, host_layout.SWITCH_ROOT_SOCKET),
        (edge_switch.LOCK, f"{host_layout.RUN_DIR}/{host_layout.LOCK}"),
        (edge_switch.STATES, host_layout.EDGE_STATES),
        (edge_switch.LENT, f"{deployment_state.LENT}_"),
        (lease.file(Places()), host_layout.LEASE),
        (edge_switch.SWITCH, host_layout.SWITCH_PROGRAM),
        (edge_switch.RETRY_S, answers.RETRY_S),
        (f"^{switch.NAME.pattern}$", NAMES["pattern"]),
        (edge_quota.KEYS, host_layout.EDGE_KEYS),
        (edge_quota.FOLDER / edge_quota.SPENT, host_layout.EDGE_SPENT),
        (edge_quota.SOCKET, host_layout.EDGE_ADMIN_SOCKET),
        (edge_quota.UNIT, host_layout.EDGE_UNIT),
        (notify.SWITCH_UNIT, switch.OWN_UNIT),
        (edge_admin.SOCKET, host_layout.EDGE_ADMIN_SOCKET),
        (edge_admin.ROUTE_SOCKET, host_layout.EDGE_ROUTE_ADMIN_SOCKET),
        (image_build.RECORD, host_layout.DERIVED_RECORD),
        (failover.COUNTER, observation.FINISHED),
        (server_wait.UNIX, unix_http.SCHEME),
        (upstream.DOCKER_HUB, image_name.DOCKER_HUB),
        (model_files.COMMIT.pattern, lockfile.COMMIT.pattern),
        (spark_edge.FILE_MODE, steps.FILE_MODE),
        (spark_edge.UNIT_MODE, steps.UNIT_MODE),
        (spark_launches.CACHE, container_layout.CACHE_IN_CONTAINER),
        (spark_launches.HUB, f"{container_layout.HUB_IN_CONTAINER}/"),
        (Places().run, host_layout.RUN_DIR),
        (Places().config, host_layout.CONFIG_DIR),
        (Places().histories, host_layout.STATES_DIR),
        (Places().starts, host_layout.STARTS_DIR),
        (Places().map, host_layout.EDGE_STATES),
    ],
)
def test_a_copy_says_what_its_owner_says(copy: object, owner: object) -> None:
    assert str(copy) == str(owner)


@pytest.mark.parametrize("program", ["liveness", "metrics", "notify", "switch", "unit_events"])
def test_a_program_finds_its_modules_where_they_are_placed(program: str) -> None:
    text = (paths.NODE / f"{program}.py").read_text()
    assert re.findall(r'^sys\.path\.insert\(0, "(.*)"\)$', text, re.MULTILINE) == [host_layout.MODULES]


def test_the_fingerprint_of_a_launch_is_found_by_its_label() -> None:
    assert launch_difference.FINGERPRINT.search(f"--label {host_layout.LAUNCH_LABEL}=0f3a")


def test_the_switch_and_the_status_read_the_counters_of_the_bench() -> None:
    assert engine_api.BUSY.findall(f"{observation.RUNNING} 1.0\n{observation.WAITING} 2.0\n") == ["1.0", "2.0"]
    read = {observation.RUNNING, observation.WAITING, observation.GENERATED_TOKENS}
    assert read <= set(spark_status.METRICS)


def test_a_person_has_the_same_name_everywhere() -> None:
    longest, longer = "a" * config.MAX_USER, "a" * (config.MAX_USER + 1)
    for pattern in (persons.NAME, edge_switch.PERSON):
        assert pattern.fullmatch(longest)
        assert not pattern.fullmatch(longer)


def test_the_units_name_only_what_the_layout_names() -> None:
    known = {value for value in vars(host_layout).values() if isinstance(value, str) and value.startswith("/")}
    named = {
        (unit.name, path)
        for unit in paths.TEMPLATES.glob("*.service")
        for path in re.findall(r"/[a-z/]+/vllm[-a-z]*(?:/[a-z][-a-z0-9]*(?:\.[a-z]+)?)*", unit.read_text())
    }
    assert {"/etc/vllm-spark/edge/haproxy.cfg", "/usr/local/lib/vllm-spark/state"} <= {path for _, path in named}
    assert {(unit, path) for unit, path in named if path not in known} == set()


def default_of_role(role: str, variable: str) -> str:
    """Return what a role takes where the inventory has no such variable."""
    defaults: dict[str, Any] = yaml.safe_load((paths.ROOT / "roles" / role / "defaults" / "main.yml").read_text())
    (value,) = re.findall(r"default\('([^']*)'\)", defaults[variable]) or [defaults[variable]]
    return str(value)


@pytest.mark.parametrize(
    ("role", "variable", "owner"),
    [
        ("spark_lock", "spark_lock_folder", host_layout.RUN_DIR),
        *((role, f"{role}_hub_dir", SiteSettings().hub_dir) for role in ("spark_precheck", "vllm_pull")),
        *((role, f"{role}_cache_dir", SiteSettings().cache_dir) for role in ("spark_precheck", "vllm_pull")),
    ],
)
def test_a_role_has_the_default_of_the_code(role: str, variable: str, owner: str) -> None:
    assert default_of_role(role, variable) == owner


@pytest.mark.parametrize(
    ("unit", "port"),
    [
        (host_layout.METRICS_EXPORTER, ports.EXPORTER_PORT),
        (host_layout.METRICS_PROMETHEUS, ports.PROMETHEUS_PORT),
        (host_layout.METRICS_ALERTS, ports.ALERTS_PORT),
    ],
)
def test_a_recorder_listens_where_it_is_asked_and_nowhere_else(unit: str, port: int) -> None:
    text = (paths.TEMPLATES / unit).read_text()
    assert re.findall(r"--web\.listen-address=(\S+)", text) == [f"{ports.LOOPBACK}:{port}"]
    assert "--cluster.listen-address= " in text or "alertmanager" not in text
