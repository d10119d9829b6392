"""`vllm-spark logs`: the machine's own journalctl reads a journal of a file, over OpenSSH and on this machine."""

from __future__ import annotations

import getpass
import gzip
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import loopback
from fakes import openssh_server, terminal
from project_files import DATA
from vllm_spark.cli import inventory_values, logs, main
from waiting import LIMIT_S, until

PROGRAM = str(Path(sys.executable).with_name("vllm-spark"))
JOURNALCTL = shutil.which("journalctl")
VERSION = (
    subprocess.run([JOURNALCTL, "--version"], capture_output=True, text=True, check=True).stdout if JOURNALCTL else ""
)
# A later one writes +00:00 for UTC, and leaves out the line of systemd itself that the sample has.
pytestmark = pytest.mark.skipif(
    not VERSION.startswith("systemd 252 "), reason="no journalctl of systemd 252, which wrote the sample"
)
# What precedes the real program. systemd-journal-remote made the journal of system.export beside it.
JOURNAL = DATA / "journal" / "system.journal.gz"
READ = """#!/bin/sh
echo $$ >> {folder}/pids
exec {journalctl} -D {folder}/journal "$@"
"""
# An account of a Spark that may not read the journal, and whose sudo has this password.
PASSWORD = "sudo of a test"
STAND_INS = {
    "id": "#!/bin/sh\necho users\n",
    "sudo": f"""#!/bin/sh
# stand-in for sudo
case $1 in
-n) echo "sudo: a password is required" >&2; exit 1;;
-S) read -r typed; [ "$typed" = "{PASSWORD}" ] || {{ echo "Sorry, try again." >&2; exit 1; }}; shift 4; exec "$@";;
esac
""",
}
AT = "2026-01-31T12:00:0{}.000000+0000 spark-1a2b "
LINES = [
    AT.format(0) + "systemd[1]: Starting vllm@gemma.service - vLLM deployment gemma...",
    AT.format(1) + "vllm-gemma[812]: vllm-spark: launch 0f1e2d3c4b5a",
    AT.format(2) + "vllm-gemma[812]: INFO 01-31 12:00:05 [api_server.py:1] vLLM API server version 0.12.0",
    AT.format(3)
    + "vllm-gemma[812]: INFO 01-31 12:00:06 [utils.py:1] non-default args: {'api_key': ['<masked>'], 'port': "
    "8000}",
    AT.format(4) + "vllm-gemma[812]: Traceback (most recent call last):",
    *(" " * 60 + line for line in ('  File "x.py", line 1', "ValueError: token <masked> is wrong")),
    AT.format(6) + "vllm-gemma[812]: INFO 01-31 12:00:09 the key <masked> again",
]


class Site:
    """An inventory, the programs of its Sparks, and the command at this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.hosts: dict[str, dict[str, Any]] = {}
        self.vars: dict[str, Any] = {}
        for new in (self.bin, folder / "journal"):
            new.mkdir()
        (folder / "journal" / "system.journal").write_bytes(gzip.decompress(JOURNAL.read_bytes()))
        self.program("journalctl", READ.format(folder=folder, journalctl=JOURNALCTL))
        self.path = f"{self.bin}:{os.environ['PATH']}"

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def asks_for_a_password(self) -> None:
        for name, text in STAND_INS.items():
            self.program(name, text)

    def argv(self, *words: str) -> list[str]:
        deployments = [
            {"name": "gemma", "recipe": "gemma-4-31b-nvfp4", "hosts": list(self.hosts)},
            {"name": "other", "recipe": "gemma-4-31b-nvfp4", "hosts": ["spark9"], "active": False},
        ]
        self.vars = {"vllm_deployments": deployments, "vllm_secrets": {"VLLM_API_KEY": "geheim-of-a-test"}}
        inventory = self.folder / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"sparks": {"hosts": self.hosts, "vars": self.vars}}))
        return [PROGRAM, "logs", "-i", str(inventory), *words]

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PATH": self.path, "TERM": "dumb"}

    def run(self, *words: str) -> tuple[int, list[str], str]:
        done = subprocess.run(
            self.argv(*words), env=self.environment, cwd=self.folder,
            capture_output=True, text=True, timeout=4 * LIMIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout.splitlines(), done.stderr

    def at_a_terminal(self, words: str, after: str, typed: str) -> tuple[int, str]:
        return terminal.typed(self.argv(*words.split()), self.environment, {after: typed})

    def readers(self) -> list[int]:
        """Return the processes that read a journal."""
        pids = [int(line) for line in (self.folder / "pids").read_text().split()]
        return [pid for pid in pids if "journalctl" in _program(pid)]


def _program(pid: int) -> str:
    """Return the program of a process, nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def here(site: Site) -> Site:
    """The Spark is this machine."""
    site.hosts["spark1"] = {"ansible_connection": "local"}
    return site


@pytest.fixture
def over_ssh(site: Site) -> Iterator[Site]:
    """The Spark is behind a real SSH server, with a key and a known host that only variables of the inventory name."""
    key = site.folder / "a key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    server = site.folder / "sshd"
    with openssh_server.running(server, key.with_suffix(".pub"), f"SetEnv PATH={site.path}") as port:
        known = " ".join((server / "host_ed25519.pub").read_text().split()[:2])
        (site.folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {known}\n")
        site.hosts["spark1"] = {
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": "{{ inventory_dir }}/a key",
            "ansible_ssh_common_args": "-o UserKnownHostsFile={{ inventory_dir }}/known_hosts",
        }
        yield site


@pytest.fixture(params=["here", "over_ssh"])
def each(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


def test_the_log_has_the_lines_of_the_unit_without_secrets(each: Site) -> None:
    assert each.run("gemma") == (0, LINES, "")


@pytest.fixture
def known(here: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only here the values do not come from Ansible, which takes most of the time."""
    here.argv()
    values = dict.fromkeys(logs.TEMPLATES, "") | {"ansible_connection": "local", "secrets": here.vars["vllm_secrets"]}
    values["deployments"] = here.vars["vllm_deployments"]
    monkeypatch.setattr(inventory_values, "of_sparks", lambda *_: dict.fromkeys(here.hosts, values))
    monkeypatch.setenv("PATH", here.path)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("-n 1", LINES[-1:]),
        ("-n all", LINES),
        ("-n 1 --since=2026-01-31", LINES[:1]),
        ("--since=2026-02-01", []),
    ],
)
@pytest.mark.usefixtures("known")
def test_the_lines_that_are_asked_for(words: str, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["logs", "gemma", *words.split()]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == lines
    assert printed.err == ("" if lines else "spark1: its journal has no line of vllm@gemma.service\n")


@pytest.mark.usefixtures("known")
def test_a_time_that_journalctl_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["logs", "gemma", "--since", "yesteryear"]) == 1
    assert (told := capsys.readouterr()).out == ""
    assert "yesteryear" in told.err
    assert "vllm-spark runbook log-unreadable" in told.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gema", "vllm_deployments has no gema — expected: one of gemma, other. Fix: vllm-spark logs gemma."),
        ("other", "other is on spark9, and the limit or the group sparks leaves them out — expected: one of them."),
    ],
)
@pytest.mark.usefixtures("known")
def test_a_deployment_without_a_log_is_refused(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["logs", words]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gemma second", "logs has the word 'second' — expected: options alone. Fix: vllm-spark logs gemma."),
        ("gemma -n none", "argument -n/--lines: "),
    ],
)
def test_wrong_arguments(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["logs", *words.split()])
    assert ended.value.code == main.USAGE
    assert told in capsys.readouterr().err


def test_several_sparks_are_told_apart_one_after_the_other(here: Site) -> None:
    here.hosts["spark-two"] = here.hosts["spark1"]
    status, out, _ = here.run("gemma")
    assert status == 0
    both = [[f"{host:11}{line}" for line in LINES] for host in here.hosts]
    assert sorted([out[: len(LINES)], out[len(LINES) :]]) == sorted(both)


def test_a_spark_that_is_away_is_named_and_the_others_go_on(here: Site) -> None:
    with loopback.refusing_port() as port:
        away = {"ansible_host": "127.0.0.1", "ansible_port": port, "ansible_user": "nvidia"}
        here.hosts = {"spark0": away, **here.hosts}
        status, out, err = here.run("gemma", "-n", "1")
    assert status == 4
    assert out == [f"spark1  {LINES[-1]}"]
    assert err.startswith(f"spark0: no SSH connection to 127.0.0.1 port {port}: ")
    assert "Connection refused — expected" in err


def test_a_host_key_that_is_not_known_is_refused(over_ssh: Site) -> None:
    (over_ssh.folder / "known_hosts").write_text("")
    status, out, err = over_ssh.run("gemma")
    assert (status, out) == (4, [])
    assert "Fix: vllm-spark contact 127.0.0.1 --user" in err


def test_sudo_without_a_password_is_refused(over_ssh: Site) -> None:
    over_ssh.asks_for_a_password()
    status, out, err = over_ssh.run("gemma")
    assert (status, out) == (1, [])
    assert "Fix: the same command with -K" in err


def test_sudo_takes_the_password_of_the_inventory(each: Site) -> None:
    each.asks_for_a_password()
    each.hosts["spark1"]["ansible_become_password"] = "{{ 'sudo of' }} a test"
    assert each.run("gemma") == (0, LINES, "")


@pytest.mark.parametrize(("typed", "status", "told"), [(PASSWORD, 0, LINES[-1]), ("no", 1, "does not accept this")])
def test_sudo_takes_the_password_that_is_typed(here: Site, typed: str, status: int, told: str) -> None:
    here.asks_for_a_password()
    ended, output = here.at_a_terminal("gemma -n 1 -K", "BECOME password:", typed)
    assert ended == status
    assert told in output
    assert PASSWORD not in output


def test_ctrl_c_ends_both_ends(each: Site) -> None:
    status, output = each.at_a_terminal("gemma -f", LINES[-1], "\x03")
    assert status == 128 + signal.SIGINT
    assert output.replace("^C", "").splitlines() == LINES
    until(lambda: not each.readers())


def test_a_reader_that_is_ended_leaves_nothing_behind(over_ssh: Site) -> None:
    with subprocess.Popen(
        over_ssh.argv("gemma", "-f"), env=over_ssh.environment, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().rstrip() == LINES[0]
        assert over_ssh.readers()
        reader.terminate()
    assert reader.returncode == 128 + signal.SIGTERM
    until(lambda: not over_ssh.readers())


def test_a_pipe_that_closes_ends_it(here: Site) -> None:
    line = f"set -o pipefail; {PROGRAM} logs -i {here.argv()[3]} gemma -f | head -1"
    done = subprocess.run(
        ["bash", "-c", line], env=here.environment, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False
    )
    assert (done.stdout, done.stderr) == (f"{LINES[0]}\n", "")
    until(lambda: not here.readers())
