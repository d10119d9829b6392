"""The module on a fake host of folders, short scripts and a Docker socket: a head that runs with Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_bundle, spark_files

from project_files import load_module
from vllm_spark.doctor import support_bundle
from vllm_spark.doctor.support_bundle import Collected

KEY, TOKEN, OLD, HUB = "hidden/key of+a test", "0123456789abcdef" * 4, "the-key-before-it", "hf_" + "a1b2c3d4" * 4
SECRETS = (KEY, TOKEN, OLD, HUB)
NOW, BEFORE = "a" * 32, "b" * 32
PID = 4242

SYSTEMCTL = """#!/bin/sh
case "$*" in
  list-units*--plain*) echo "  vllm@gemma.service loaded active running vLLM deployment gemma"
    echo "  vllm@gone.service loaded failed failed vLLM deployment gone"
    echo "  vllm@never.service loaded inactive dead vLLM deployment never" ;;
  *"show "*gemma*) echo ActiveState=active; echo SubState=running; echo Result=success; echo NRestarts=2
    echo InvocationID=@NOW@; echo "Environment=MY_API_KEY=@KEY@" ;;
  *"show "*old*) echo ActiveState=inactive; echo SubState=dead; echo Result=success; echo NRestarts=0 ;;
  *"show "*) echo ActiveState=failed; echo SubState=failed; echo Result=exit-code; echo NRestarts=5 ;;
esac
"""
JOURNALCTL = """#!/bin/sh
case "$*" in
  *MESSAGE_ID=*UNIT=vllm@gemma.service) echo '{"INVOCATION_ID": "@NOW@"}'; echo '{"INVOCATION_ID": "@BEFORE@"}'
    echo '{"INVOCATION_ID": null}'; echo no json ;;
  *--lines*@NOW@*) n=2000; while [ $n -lt 10000 ]; do echo "2026-11-20T10:00:00.$n vllm: x"; n=$((n + 1)); done ;;
  *@NOW@*) n=0; while [ $n -lt 10000 ]; do echo "2026-11-20T10:00:00.$n vllm: x"; n=$((n + 1)); done ;;
  *@BEFORE@*) echo "2026-11-20T10:00:00+0000 spark1 vllm[1]: args: {'api_key': ['@OLD@']}"
    echo "OSError: [Errno 98] Address already in use" ;;
  *liveness@gemma*) echo "vllm@gemma.service hangs" ;;
  *"--boot -1"*) echo "Data from the specified boot (-1) is not available"; exit 1 ;;
  *--dmesg*) echo "2026-11-20T10:00:00+0000 spark1 kernel: Out of memory: Killed process 42 (VLLM) total-vm:1kB" ;;
esac
"""
DOCKER = """#!/bin/sh
case "$*" in
  inspect*vllm-gemma) echo '[@CONTAINER@]' ;;
  inspect*) echo "[]"; echo "Error: No such container" >&2; exit 1 ;;
  info) echo "HTTP Proxy: http://user:proxypass@proxy" ;;
  *) echo "docker said $*" ;;
esac
"""
HANGS = "#!/bin/sh\nwhile :; do :; done\n"
PS = '#!/bin/sh\necho "who knows @HUB@"\n'

CONTAINER = {
    "Id": "f" * 64,
    "Image": "sha256:" + "1" * 64,
    "State": {"Status": "running", "Pid": PID},
    "Config": {"Env": [f"HF_TOKEN={HUB}", f"RAY_AUTH_TOKEN={TOKEN}", "OMP_NUM_THREADS=4"]},
}
DOCKER = DOCKER.replace("@CONTAINER@", json.dumps(CONTAINER))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module on a host whose files are all below tmp_path."""
    module = load_module("vllm_collect_logs")
    for name, folder in (
        ("CONFIG_DIR", "etc"),
        ("RUN_DIR", "run"),
        ("STATES_DIR", "states"),
        ("PROC", "proc"),
        ("bin", "bin"),
    ):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(module, name, str(tmp_path / folder), raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(module, "fabric", lambda: {"netdevs": [], "error": ""})
    return module


def place(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def program(folder: Path, name: str, text: str) -> None:
    for word in ("NOW", "BEFORE", "KEY", "OLD", "HUB"):
        text = text.replace(f"@{word}@", globals()[word])
    (folder / "bin" / name).write_text(text)
    (folder / "bin" / name).chmod(0o755)


@pytest.fixture
def full(host: ModuleType, tmp_path: Path) -> ModuleType:
    """One running deployment, one inactive, and two that only systemd knows: one failed, one was never deployed."""
    record = {"image": "registry:5000/vllm:v1", "digest": "sha256:" + "2" * 64}
    place(
        tmp_path / "etc",
        {
            "gemma/launch": f"#!/bin/sh\nexec docker run --env 'PEER_TOKEN={OLD}' --env-file env image\n",
            "gemma/env": f"VLLM_API_KEY={KEY}\nSHORT=1\n",
            "gemma/link.key": f"{'5a' * 32}\n",
            "gemma/deployed.json": json.dumps(record),
            "gemma/previous/env": f"VLLM_API_KEY={OLD}\n",
            "gemma/previous/launch": "#!/bin/sh\n",
            "gemma/.vllm-spark-cut-off": KEY,
            "gemma/mounts/secret.json": KEY,
            "old/deployed.json": json.dumps(record),
            "old/gates.json": json.dumps({"image": "127.0.0.1:25093/derived/x:1"}),
        },
    )
    place(
        tmp_path / "run" / "gemma", {"state.json": '{"state": "serving"}', "session.env": f"RAY_AUTH_TOKEN={TOKEN}\n"}
    )
    place(tmp_path / "states", {"gemma.jsonl": '{"time": 1.0, "state": "loading", "why": "deploy"}\n'})
    place(tmp_path / "run" / "pull", {"weights.progress": "{}"})
    logs = tmp_path / "proc" / str(PID) / "root" / "tmp" / "ray" / "session_1" / "logs"
    place(logs, {"raylet.out": f"[I] token {TOKEN}\n", "monitor.log": "a\n", "empty.err": "", "old/worker.out": "b"})
    (logs / "leak.out").symlink_to(tmp_path / "etc" / "gemma" / "env")
    (logs.parents[1] / "session_latest").symlink_to("/tmp/ray/session_1")  # noqa: S108  as Ray has it
    for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL), ("docker", DOCKER), ("ps", PS)):
        program(tmp_path, name, text)
    return host


@pytest.fixture
def gather(capsys: pytest.CaptureFixture[str]) -> Callable[..., Collected]:
    def _gather(module: ModuleType, check: bool = False) -> Collected:
        with patch_module_args({"_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        result = json.loads(capsys.readouterr().out)
        assert result["changed"] is False
        return support_bundle.unpack(result["collected"])

    return _gather


Gather = Callable[..., Collected]


@pytest.mark.parametrize("check", [False, True])
def test_the_files_of_a_collection(check: bool, full: ModuleType, gather: Gather) -> None:
    collected = gather(full, check)
    assert [name for name in collected.files if name.startswith("deployments/")] == [
        "deployments/gemma/unit-state.txt",
        "deployments/gemma/unit.txt",
        "deployments/gemma/deployed.json",
        "deployments/gemma/env",
        "deployments/gemma/launch",
        "deployments/gemma/previous/env",
        "deployments/gemma/previous/launch",
        "deployments/gemma/mounts.txt",
        "deployments/gemma/run/state.json",
        "deployments/gemma/run/session.env",
        "deployments/gemma/states.jsonl",
        "deployments/gemma/journal.log",
        "deployments/gemma/journal-previous.log",
        "deployments/gemma/liveness.log",
        "deployments/gemma/container.json",
        "deployments/gemma/ray/monitor.log",
        "deployments/gemma/ray/raylet.out.log",
        "deployments/gone/unit-state.txt",
        "deployments/gone/unit.txt",
        "deployments/old/unit-state.txt",
        "deployments/old/unit.txt",
        "deployments/old/deployed.json",
        "deployments/old/gates.json",
    ]
    assert collected.manifest["deployments"] == {
        "gemma": {"ActiveState": "active", "SubState": "running", "Result": "success", "NRestarts": "2"},
        "gone": {"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "NRestarts": "5"},
        "old": {"ActiveState": "inactive", "SubState": "dead", "Result": "success", "NRestarts": "0"},
    }
    notes = "\n".join(collected.manifest["notes"])
    assert "docker shows no container vllm-gone" in notes
    assert "nvidia-smi: No such file or directory" in notes
    assert "journalctl: Data from the specified boot (-1) is not available" in notes


def test_launches_behind_links_have_the_names_of_an_older_toolkit(
    full: ModuleType, gather: Gather, tmp_path: Path
) -> None:
    older = gather(full).files
    spark_files.adopt(str(tmp_path / "etc" / "gemma"))
    assert (tmp_path / "etc" / "gemma" / "previous").is_symlink()
    links = gather(full).files
    assert list(links) == list(older)
    names = [name for name in older if name.startswith("deployments/gemma/previous/")]
    assert {name: links[name] for name in names} == {name: older[name] for name in names} != {}


def test_no_secret_leaves_the_host(full: ModuleType, gather: Gather) -> None:
    collected = gather(full)
    whole = json.dumps([collected.files, collected.manifest])
    assert [secret for secret in (*SECRETS, "proxypass") if secret in whole or json.dumps(secret)[1:-1] in whole] == []
    at = "deployments/gemma"
    assert collected.files[f"{at}/env"] == "VLLM_API_KEY=<masked>\nSHORT=<masked>\n"
    assert collected.files[f"{at}/run/session.env"] == "RAY_AUTH_TOKEN=<masked>\n"
    assert collected.files[f"{at}/ray/raylet.out.log"] == "[I] token <masked>\n"
    assert "OMP_NUM_THREADS=4" in collected.files[f"{at}/container.json"]
    assert "--env 'PEER_TOKEN=<masked>'" in collected.files[f"{at}/launch"]
    assert "who knows <masked>" in collected.files["host/processes.txt"]
    assert collected.manifest["weak_secrets"] == ["SHORT"]


def test_a_journal_with_more_lines_than_are_asked_for_is_joined(full: ModuleType, gather: Gather) -> None:
    collected = gather(full)
    lines = collected.files["deployments/gemma/journal.log"].splitlines()
    assert lines == [f"2026-11-20T10:00:00.{number} vllm: x" for number in range(10_000)]


def test_a_journal_beyond_the_bounds_is_sent_from_both_ends(
    full: ModuleType, gather: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "JOURNAL", (1000, 1000))
    lines = gather(full).files["deployments/gemma/journal.log"].splitlines()
    assert [lines[0], lines[-1]] == [f"2026-11-20T10:00:00.{number} vllm: x" for number in (0, 9999)]
    assert lines.count(spark_bundle.GAP.strip()) == 1
    assert sum(map(len, lines)) < 2100


def test_current_findings_come_before_earlier_ones(full: ModuleType, gather: Gather) -> None:
    examination = support_bundle.examine(gather(full))
    assert [finding.signature for finding in examination.current.findings] == ["out-of-memory-killed"]
    assert [finding.signature for finding in examination.earlier.findings] == ["port-in-use"]


def test_docker_is_read_if_the_journal_has_no_log(full: ModuleType, gather: Gather, tmp_path: Path) -> None:
    program(tmp_path, "journalctl", "#!/bin/sh\n")
    collected = gather(full)
    assert "docker said logs --timestamps --tail 5000 vllm-gemma" in collected.files["deployments/gemma/docker.log"]
    assert any("the journal has no line" in note for note in collected.manifest["notes"])


def test_a_link_out_of_the_container_is_not_followed(full: ModuleType, gather: Gather, tmp_path: Path) -> None:
    ray = tmp_path / "proc" / str(PID) / "root" / "tmp" / "ray"
    (ray / "session_1").rename(ray / "real")
    (ray / "session_1").symlink_to(ray / "real")
    collected = gather(full)
    assert [name for name in collected.files if "/ray/" in name] == []
    assert any("may lead out of the container" in note for note in collected.manifest["notes"])


def test_docker_is_down(full: ModuleType, gather: Gather, tmp_path: Path) -> None:
    program(tmp_path, "docker", "#!/bin/sh\necho Cannot connect to the Docker daemon; exit 1\n")
    collected = gather(full)
    assert "deployments/gemma/journal.log" in collected.files
    assert not [name for name in collected.files if name.endswith("container.json")]
    assert "Cannot connect to the Docker daemon" in collected.files["host/docker.txt"]
    assert "`docker version`: docker ended with status 1" in collected.manifest["notes"]


def test_a_host_without_deployments_and_commands(host: ModuleType, gather: Gather) -> None:
    """Without a deployment, a command and Docker there are notes and no failure."""
    collected = gather(host)
    assert collected.manifest["deployments"] == {}
    assert "`journalctl" in "\n".join(collected.manifest["notes"])
    assert list(support_bundle.units(collected)) == ["no deployment on this host"]
    assert support_bundle.examine(collected).current.findings == ()


def test_a_folder_that_is_no_deployment_does_not_cost_the_bundle(host: ModuleType, gather: Gather) -> None:
    folder = Path(host.RUN_DIR) / "\\1"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    collected = gather(host)
    assert collected.manifest["deployments"] == {}
    assert r"'\\1' is not a deployment's name" in "\n".join(collected.manifest["notes"])


def test_the_edge_of_a_host_is_no_deployment_and_keeps_its_keys(
    host: ModuleType, gather: Gather, tmp_path: Path
) -> None:
    files = {
        "haproxy.cfg": "frontend edge\n",
        "route.cfg": "frontend edge\n",
        "tls.pem": "-----BEGIN PRIVATE KEY-----\n",
        "keys.map": f"{'5a' * 32} ada\n",
    }
    place(tmp_path / "etc" / "edge", files)
    program(
        tmp_path, "journalctl", '#!/bin/sh\ncase "$*" in *UNIT=vllm-edge.service*) echo "who=ada status=502" ;; esac\n'
    )
    program(tmp_path, "systemctl", '#!/bin/sh\necho "ActiveState=active $*"\n')
    collected = gather(host)
    assert collected.manifest["deployments"] == {}
    assert [name for name in collected.files if name.startswith("edge/")] == [
        "edge/haproxy.cfg",
        "edge/route.cfg",
        "edge/unit-state.txt",
        "edge/journal.txt",
    ]
    assert collected.files["edge/journal.txt"] == "who=ada status=502\n"
    whole = json.dumps(collected.files)
    assert "PRIVATE KEY" not in whole
    assert "5a5a" not in whole


def test_a_command_that_hangs_is_a_note(
    host: ModuleType, gather: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_bundle, "COMMAND_TIMEOUT_S", 0.5)
    program(tmp_path, "nvidia-smi", HANGS)
    assert "`nvidia-smi -q`: nvidia-smi did not end within 0 s" in gather(host).manifest["notes"]


def test_unreadable_facts_are_a_note(host: ModuleType, gather: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd() -> None:
        raise ValueError("ip said no JSON")

    monkeypatch.setattr(host, "fabric", odd)
    collected = gather(host)
    assert "facts, fabric: ValueError: ip said no JSON" in collected.manifest["notes"]
    assert json.loads(collected.files["host/facts.json"])["memory"]["total"] > 0


def test_after_the_deadline(host: ModuleType, gather: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_bundle, "DEADLINE_S", 0.0)
    program(tmp_path, "ps", PS)
    collected = gather(host)
    assert collected.files["host/processes.txt"].splitlines()[1:] == []
    assert any("not run, the 0 s for this host are over" in note for note in collected.manifest["notes"])


def test_a_full_bundle_leaves_the_rest_out(full: ModuleType, gather: Gather, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_bundle, "MAX_BYTES", 50_000)
    collected = gather(full)
    assert "deployments/gemma/journal.log" not in collected.files
    assert sum(map(len, collected.files.values())) < 50_000 + 10_000
    assert any("deployments/gemma/journal.log" in note and "left out" in note for note in collected.manifest["notes"])


def test_files_that_cannot_be_read(full: ModuleType, gather: Gather, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "etc" / "gemma" / "pipe")
    place(tmp_path / "etc" / "gemma", {f"previous/{number}": "x" for number in range(99)})
    collected = gather(full)
    notes = "\n".join(collected.manifest["notes"])
    assert "pipe: not a regular file" in notes
    assert "more than 60 files" in notes


ENDED = """#!/bin/sh
case "$*" in
  *--dmesg*) ;;
  *"--boot -1"*) echo "2026-09-14T03:11:02.120000+0000 spark1 kernel: usb 1-1: reset"
    echo "2026-09-14T03:11:40.500000+0000 spark1 systemd[1]: key is @KEY@" ;;
esac
"""
PROMTOOL = """#!/bin/sh
echo 'watch:temperature{spark="spark1"} => 61 @[1789355500]'; echo "$*"
"""


def test_the_end_of_the_boot_before_has_pstore_and_what_was_recorded(
    full: ModuleType, gather: Gather, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "journalctl", ENDED)
    program(tmp_path, "promtool", PROMTOOL)
    place(tmp_path / "pstore", {"1/dmesg.txt": "Kernel panic - not syncing: Fatal exception"})
    monkeypatch.setattr(full, "PSTORE", (str(tmp_path / "pstore"),))
    kept = tmp_path / "metrics-kept.env"
    monkeypatch.setattr(full.layout, "METRICS_KEPT", str(kept))
    without = gather(full).files["host/boot-previous.log"]
    assert without.startswith("vllm-spark: the end of the boot before\n2026-09-14T03:11:02")
    assert "Kernel panic - not syncing" in without
    assert KEY not in without
    assert "recorded until then" not in without
    kept.write_text("DAYS=30\nGIB=4\nSPARK=spark1\n")
    text = gather(full).files["host/boot-previous.log"]
    assert "=> 61" in text
    # The time of the last line, in the form of RFC 3339.
    assert "query instant --time=2026-09-14T03:11:40.500000Z http://127.0.0.1:25096" in text
    assert 'spark="spark1"' in text


def test_a_host_without_a_boot_before_has_no_end_of_it(full: ModuleType, gather: Gather) -> None:
    assert "host/boot-previous.log" not in gather(full).files
