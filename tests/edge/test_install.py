"""The module vllm_edge: HAProxy judges before a file is replaced, no secret is shown, and a second run is quiet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge

from fakes import edge_cases
from fakes.running_edge import HASH, haproxy
from project_files import load_module
from vllm_spark.edge import authority, config, steps, switch_request
from vllm_spark.edge.config import EdgeFiles

NOW = datetime.now(UTC)
START_ROUTE = "start vllm-edge-route.service"
Install = Callable[..., dict[str, Any]]


class Host:
    """A host below a folder: files are real, systemd and the account are not."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.systemctl: list[str] = []
        self.unit = {"ActiveState": "inactive", "UnitFileState": "disabled"}
        self.switch = {"ActiveState": "inactive"}
        self.must = spark_edge.must
        files = ("CONFIG", "ROUTE", "KEYS", "CERTIFICATE", "AUTHORITY", "TOKENS", "STATES", "SPENT", "SOCKET")
        for name in (
            *files,
            "NAMES_CERTIFICATE",
            "CERTIFICATE_LIST",
            "UNIT_FILE",
            "ROUTE_UNIT_FILE",
            "SWITCH",
            "SWITCH_LIST",
            "SWITCH_UNIT_FILE",
        ):
            value = str(folder / getattr(spark_edge, name).rpartition("/")[2])
            monkeypatch.setattr(spark_edge, name, value)
        monkeypatch.setattr(spark_edge, "FOLDER", str(folder))
        monkeypatch.setattr(spark_edge, "PROGRAM", haproxy())
        monkeypatch.setattr(spark_edge, "has_account", lambda: True)
        monkeypatch.setattr(spark_edge, "ensure_account", lambda: None)
        monkeypatch.setattr(spark_edge, "ensure_folder", lambda: None)
        monkeypatch.setattr(spark_edge.shutil, "chown", lambda *_: None)
        monkeypatch.setattr(
            spark_edge, "unit_state", lambda unit="": self.switch if unit == spark_edge.SWITCH_UNIT else self.unit
        )
        monkeypatch.setattr(spark_edge, "must", self.run)
        monkeypatch.setattr(spark_edge, "read_keys", self.bound(spark_edge.read_keys))
        monkeypatch.setattr(spark_edge, "write_keys", self.bound(spark_edge.write_keys))
        monkeypatch.setattr(spark_edge, "apply_keys", lambda _: True)
        # Each reload has another process.
        monkeypatch.setattr(spark_edge, "worker", lambda _: str(len(self.systemctl)))

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the keys on the file of this host."""
        return lambda *args: function(*args, path=str(self.folder / "keys.map"))

    def run(self, *argv: str) -> str:
        if argv[0] != "systemctl":
            return self.must(*argv)
        self.systemctl.append(" ".join(argv[1:]))
        if argv[-1] == spark_edge.SWITCH_UNIT:
            self.switch = {"ActiveState": "active" if argv[1] == "restart" else "inactive"}
        elif argv[1] in ("start", "restart", "reload"):
            self.unit = {"ActiveState": "active", "UnitFileState": "enabled"}
        return ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


@pytest.fixture
def install(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Install:
    """Run the module with the configuration of a spec, and return its result."""
    module = load_module("vllm_edge_files")
    monkeypatch.setattr(module, "CANDIDATE", str(host.folder / ".candidate"))
    monkeypatch.setattr(module, "must", host.run)

    listed = config.certificate_list(
        EdgeFiles(certificate=spark_edge.CERTIFICATE, names_certificate=spark_edge.NAMES_CERTIFICATE)
    )

    def _install(check: bool = False, **args: Any) -> dict[str, Any]:
        with (
            patch_module_args(
                {"certificate_list": listed, **args, "_ansible_check_mode": check, "_ansible_diff": True}
            ),
            pytest.raises(SystemExit),
        ):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return _install


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Any]:
    files = EdgeFiles(
        keys=str(tmp_path / "keys.map"),
        certificate=str(tmp_path / "tls.pem"),
        names_certificate=str(tmp_path / "names.pem"),
        certificate_list=str(tmp_path / "certificates.list"),
        tokens=str(tmp_path / "tokens.lua"),
        states=str(tmp_path / "states.map"),
        spent=str(tmp_path / "spent.map"),
        admin_socket=str(tmp_path / "admin.sock"),
        route_admin_socket=str(tmp_path / "route.sock"),
        route_sockets=str(tmp_path),
    )
    own = edge_cases.edge_of([edge_cases.DEMO], {"open": False})
    pair = authority.new_certificate(authority.new_authority(NOW), ["spark1"], NOW)
    return {
        "config": config.config(own, "127.0.0.1", replace(files)),
        "route": config.route(own, files),
        "tokens": steps.tokens_file(),
        "unit": steps.unit_file(),
        "route_unit": steps.unit_file(spark_edge.ROUTE_UNIT),
        **asdict(pair),
        "first_keys": {HASH: "owner"},
    }


def test_a_first_run_places_everything_and_a_second_nothing(
    host: Host, install: Install, wanted: dict[str, Any]
) -> None:
    first = install(**wanted)
    assert first["changed"]
    assert host.systemctl == ["daemon-reload", "enable vllm-edge.service", "start vllm-edge.service", START_ROUTE]
    assert {file.name for file in host.folder.iterdir()} == {
        "haproxy.cfg",
        "route.cfg",
        "keys.map",
        "tls.pem",
        "names.pem",
        "certificates.list",
        "tokens.lua",
        "states.map",
        "spent.map",
        "vllm-edge.service",
        "vllm-edge-route.service",
    }
    assert (host.folder / "tls.pem").stat().st_mode & 0o777 == 0o640
    assert spark_edge.read_keys() == {HASH: "owner"}
    host.systemctl.clear()
    again = {key: wanted[key] for key in ("config", "route", "unit", "route_unit")}
    second = install(**again)
    assert (second["changed"], second["steps"], host.systemctl) == (False, [], [])


def test_keys_that_a_person_has_restored_are_those_of_the_edge(
    host: Host, install: Install, wanted: dict[str, Any]
) -> None:
    """docs/operations/back-up.md: root has copied the file before the folder had its group."""
    restored = host.folder / "keys.map"
    restored.write_text(f"{HASH} ada/switch\n")
    restored.chmod(0o600)
    install(**{**wanted, "first_keys": {}})
    assert spark_edge.read_keys() == {HASH: "ada/switch"}
    assert restored.stat().st_mode & 0o777 == 0o640


def test_the_authority_of_a_site_is_placed_before_haproxy_judges(
    host: Host, install: Install, wanted: dict[str, Any], tmp_path: Path
) -> None:
    files = EdgeFiles(
        keys=str(tmp_path / "keys.map"),
        certificate=str(tmp_path / "tls.pem"),
        names_certificate=str(tmp_path / "names.pem"),
        certificate_list=str(tmp_path / "certificates.list"),
        tokens=str(tmp_path / "tokens.lua"),
        states=str(tmp_path / "states.map"),
        spent=str(tmp_path / "spent.map"),
        authority=str(tmp_path / "ca.crt"),
        admin_socket=str(tmp_path / "admin.sock"),
        route_admin_socket=str(tmp_path / "route.sock"),
        route_sockets=str(tmp_path),
    )
    own = edge_cases.edge_of([edge_cases.DEMO, edge_cases.REPLICA], {"open": False, "site": edge_cases.SITE})
    text = config.config(own, "127.0.0.1", files)
    site = authority.new_authority(NOW)
    pair = authority.new_certificate(site, ["spark1"], NOW, asks=True)
    wanted |= {"config": text, **asdict(pair)}
    assert install(**wanted, authority=site.certificate)["changed"]
    assert (host.folder / "ca.crt").read_text() == site.certificate
    assert (host.folder / "haproxy.cfg").read_text() == text
    host.systemctl.clear()
    again = install(config=text, unit=wanted["unit"], authority=site.certificate)
    assert (again["changed"], host.systemctl) == (False, [])


def test_no_output_shows_the_private_key(install: Install, wanted: dict[str, Any]) -> None:
    for check in (True, False):
        result = install(check, **wanted)
        assert "PRIVATE KEY" not in json.dumps({**result, "invocation": None})
        assert any("its content is secret" in part.get("prepared", "") for part in result["diff"])


@pytest.mark.parametrize("tls", ["files", "off"])
def test_the_certificate_of_names_alone_goes_with_the_authority(
    host: Host, install: Install, wanted: dict[str, Any], tls: str
) -> None:
    install(**wanted)
    host.systemctl.clear()
    (shown,) = re.findall(r"ssl crt-list \S+ alpn h2,http/1.1", wanted["config"])
    text = wanted["config"].replace(shown, f"ssl crt {spark_edge.CERTIFICATE}" if tls == "files" else "")
    own = {"config": text, "unit": wanted["unit"], "certificate_list": ""}
    removed = {f"{host.folder / name} is removed" for name in ("certificates.list", "names.pem")}
    for check in (True, False):
        assert removed <= {*install(check, **own)["steps"]}
        assert (host.folder / "names.pem").exists() == check
    assert host.systemctl == ["reload vllm-edge.service"]
    assert (host.folder / "tls.pem").exists()
    assert not install(**own)["changed"]


def test_check_mode_places_nothing(host: Host, install: Install, wanted: dict[str, Any]) -> None:
    predicted = install(True, **wanted)
    assert predicted["changed"]
    assert list(host.folder.iterdir()) == []
    assert host.systemctl == []


def test_a_changed_configuration_is_a_reload(host: Host, install: Install, wanted: dict[str, Any]) -> None:
    install(**wanted)
    host.systemctl.clear()
    changed = install(config=wanted["config"].replace("maxconn 512", "maxconn 600"), unit=wanted["unit"])
    assert changed["steps"] == [spark_edge.CONFIG, "systemctl reload vllm-edge.service"]
    assert host.systemctl == ["reload vllm-edge.service"]
    host.systemctl.clear()
    install(config=wanted["config"], unit=wanted["unit"] + "# changed\n")
    assert host.systemctl == ["daemon-reload", "restart vllm-edge.service", START_ROUTE]
    host.systemctl.clear()
    install(route=wanted["route"].replace("maxconn 2048", "maxconn 600"))
    assert host.systemctl == ["reload vllm-edge.service"]


def test_a_configuration_that_haproxy_refuses_replaces_nothing(
    host: Host, install: Install, wanted: dict[str, Any]
) -> None:
    install(**wanted)
    host.systemctl.clear()
    failed = install(config=wanted["config"] + "  nonsense\n", route=wanted["route"] + "\n", unit=wanted["unit"])
    assert "unknown keyword 'nonsense'" in failed["msg"]
    assert "See docs/runbooks/edge-unit.md" in failed["msg"]
    assert Path(spark_edge.CONFIG).read_text() == wanted["config"]
    assert Path(spark_edge.ROUTE).read_text() == wanted["route"]
    assert host.systemctl == []
    assert not (host.folder / ".candidate").exists()


def test_an_opened_site_stops_the_edge_and_keeps_its_files(
    host: Host, install: Install, wanted: dict[str, Any]
) -> None:
    install(**wanted)
    host.systemctl.clear()
    assert install(state="stopped")["changed"]
    assert host.systemctl == ["disable --now vllm-edge.service"]
    host.unit = {"ActiveState": "inactive", "UnitFileState": "disabled"}
    assert not install(state="stopped")["changed"]
    assert spark_edge.read_keys() == {HASH: "owner"}


def test_the_program_that_starts_models_comes_and_goes_with_its_setting(
    host: Host, install: Install, wanted: dict[str, Any]
) -> None:
    own = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False, "switch_by_request": True})
    arguments = {steps.SWITCH_ARGUMENTS[file.path]: file.content for file in switch_request.files(own)}
    install(**wanted)
    host.systemctl.clear()
    kept = {key: wanted[key] for key in ("config", "unit")}
    placed = install(**kept, **arguments)
    assert placed["steps"][-1] == "systemctl restart vllm-edge-switch.service"
    assert host.systemctl == ["daemon-reload", "restart vllm-edge-switch.service"]
    assert os.access(spark_edge.SWITCH, os.X_OK)
    assert json.loads(Path(spark_edge.SWITCH_LIST).read_text())["deployments"]["other"] == ["other-model", "o/1"]
    again = install(**kept, **arguments)
    assert (again["changed"], again["steps"]) == (False, [])
    # It has ended, and nothing has changed.
    host.switch = {"ActiveState": "failed"}
    assert install(**kept, **arguments)["steps"] == ["systemctl restart vllm-edge-switch.service"]
    host.systemctl.clear()
    predicted = install(True, **kept)
    assert (predicted["changed"], host.systemctl) == (True, [])
    assert install(**kept)["changed"]
    assert host.systemctl == ["stop vllm-edge-switch.service", "daemon-reload"]
    assert [file for file in spark_edge.switch_files() if os.path.exists(file)] == []
    assert not install(**kept)["changed"]


def test_haproxy_takes_a_configuration_before_a_deployment_has_written_a_state(
    install: Install, wanted: dict[str, Any], tmp_path: Path
) -> None:
    assert not (tmp_path / "states.map").exists()
    assert install(**wanted)["changed"]
    assert (tmp_path / "states.map").read_text() == ""
    (tmp_path / "states.map").write_text("demo loading\n")
    install(**wanted)
    assert (tmp_path / "states.map").read_text() == "demo loading\n"
