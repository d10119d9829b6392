"""`vllm-spark init`: from a Spark to an inventory that the toolkit itself accepts."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from fakes import local_spark, mdns_turn, terminal
from fakes.ssh_server import PASSWORD, USER, Server, fingerprint, new_key
from vllm_spark.cli.contact import ssh
from waiting import LIMIT_S

PROGRAM = str(Path(sys.executable).with_name("vllm-spark"))
RECIPE = "qwen3.6-35b-a3b-nvfp4-mtp"


@dataclass
class Desk:
    """A machine with its own folder of inventories. With `environment` it is a Spark."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def file(self) -> Path:
        return self.site / "hosts.yml"

    def argv(self, *words: str) -> list[str]:
        return [PROGRAM, "init", "--to", str(self.site), *words]

    def init(self, *words: str) -> tuple[int, str, str]:
        return self.run(*self.argv(*words))

    def run(self, *argv: str) -> tuple[int, str, str]:
        done = subprocess.run(
            argv, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=5 * LIMIT_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk without a Spark."""
    environment = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
    # The socket of a shared connection would have too long a path.
    environment["ANSIBLE_SSH_ARGS"] = "-o ControlMaster=no"
    # The look-alike is a Spark.
    (without := tmp_path / "without").mkdir()
    (without / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (without / "nvidia-smi").chmod(0o755)
    environment["PATH"] = f"{without}:{environment['PATH']}"
    # Without hosts it asks by mDNS, where a responder of another test would be one Spark more.
    with mdns_turn.held(alone=False):
        yield Desk(tmp_path, {**environment, "HOME": str(tmp_path), "TERM": "dumb", "COLUMNS": "140"})


@pytest.fixture
def spark(desk: Desk) -> Iterator[Desk]:
    """A desk that is a Spark."""
    folder = desk.folder / "spark"
    with local_spark.running(folder) as variables:
        desk.environment |= {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "ANSIBLE_PYTHON_INTERPRETER": variables["ansible_python_interpreter"],
        }
        yield desk


def test_a_spark_writes_its_own_inventory_and_the_toolkit_reads_it(spark: Desk) -> None:
    status, out, err = spark.init("--yes")
    assert (status, err) == (0, "")
    written = yaml.load(spark.file.read_text(), yaml.CSafeLoader)["sparks"]
    host = written["hosts"]["spark1"]
    assert host["ansible_connection"] == "local"
    assert host["ansible_host"] not in ("", "localhost", "127.0.0.1")
    assert written["vars"]["vllm_deployments"] == [{"name": "qwen", "recipe": RECIPE, "hosts": ["spark1"]}]
    assert re.search(rf"{RECIPE} [\d.]+ to [\d.]+ ±\d+% 97\.7 23\.5", " ".join(out.split()))
    assert spark.file.read_text() in out
    assert f"Next: `vllm-spark up -K -i {spark.site}`" in out
    # sudo and /var/lib are the machine's own.
    variables = ("-e", "ansible_become=false", "-e", f"vllm_hub_dir={spark.folder}/hub")
    status, out, err = spark.run(PROGRAM, "plan", "-i", str(spark.site), *variables)
    assert (status, err) == (0, "")
    assert "qwen on spark1: go" in out
    before = spark.file.read_bytes()
    status, out, err = spark.init("--yes")
    assert (status, out) == (1, "")
    assert f"{spark.file} exists" in err
    assert f"Fix: vllm-spark plan -i {spark.site}." in err
    assert spark.file.read_bytes() == before


def test_two_recipes_share_the_spark_if_they_fit(spark: Desk) -> None:
    large = ("--recipe", "gpt-oss-120b", "--recipe", RECIPE, "--recipe", "nemotron-3.5-lightning-nvfp4")
    status, out, err = spark.init("--yes", *large)
    assert status == 1, out
    assert re.search(r"gpt and nemotron and qwen are active on spark1 and need .* Fix: leave out one --recipe", err), (
        err
    )
    assert not spark.site.exists()
    status, out, err = spark.init("--yes", "--recipe", "gpt-oss-20b", "--recipe", "bge-m3")
    assert (status, err) == (0, "")
    assert re.search(r"memory of spark1: bge [\d.]+ GiB \(weights 2\.1 GiB, cache 0\.0 GiB", out), out
    variables = ("-e", "ansible_become=false", "-e", f"vllm_hub_dir={spark.folder}/hub")
    status, out, err = spark.run(PROGRAM, "plan", "-i", str(spark.site), *variables)
    assert (status, err) == (0, "")
    assert "gpt on spark1: go" in out
    assert "bge on spark1: go" in out


def test_a_conversation(spark: Desk) -> None:
    questions = {
        "Best for chat, code, pictures, many [chat]:": "pic",
        f"Recipe [{RECIPE}]:": "gemma-4-26b-a4b-fp8-mtp",
    }
    status, shown = terminal.typed(spark.argv(), spark.environment, questions)
    assert status == 0, shown
    deployment = yaml.load(spark.file.read_text(), yaml.CSafeLoader)["sparks"]["vars"]["vllm_deployments"][0]
    assert deployment["recipe"] == "gemma-4-26b-a4b-fp8-mtp"


def test_ctrl_c_leaves_nothing(spark: Desk) -> None:
    questions = {"Best for chat, code, pictures, many [chat]:": "\x03"}
    status, shown = terminal.typed(spark.argv(), spark.environment, questions)
    assert status == 130, shown
    assert f"Ended. {spark.site} is as it was." in shown
    assert "Traceback" not in shown
    assert not spark.site.exists()


REFUSED = {
    "": r"init asks, and there is no terminal — .* Fix: vllm-spark init --yes\.",
    "--yes --recipe qwen3.6-35b-a3b-nvfp4": f"unknown recipe qwen3.6-35b-a3b-nvfp4 .* Fix: name '{RECIPE}'",
    "--yes --recipe tiny-gemma5": r"unknown recipe tiny-gemma5 .* Fix: vllm-spark recipes\. It lists the names\. See",
    "localhost --yes --recipe gemma-4-31b-nvfp4-tp2-mtp": "is for 2 Sparks, and init has 1: localhost",
    "localhost --yes": r"is \S+, and its nvidia-smi shows .* expected: a Spark, whose GPU is a GB10",
    "nvidia@nosuch.invalid --yes --key KEY": r"nosuch\.invalid port 22: .* `vllm-spark runbook contact-unreachable`",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_in_an_inventory_is_refused(desk: Desk, words: str) -> None:
    new_key("ed25519", desk.folder / "key")
    status, out, err = desk.init(*words.replace("KEY", str(desk.folder / "key.pub")).split())
    assert status == 1, out
    assert re.search(REFUSED[words], err), err
    assert not desk.site.exists()


@pytest.fixture
def server(spark: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The Spark, by ssh from this machine."""
    (spark.folder / "home").mkdir()
    new_key("ed25519", spark.folder / "key")
    monkeypatch.setenv("PATH", spark.environment["PATH"])
    spark.environment[ssh.PASSWORD_VARIABLE] = PASSWORD
    server = Server(spark.folder / "home")
    yield server
    server.close()


def by_ssh(spark: Desk, server: Server, *words: str) -> list[str]:
    """Return the options of an init by ssh."""
    files = ["--key", str(spark.folder / "key.pub"), "--known-hosts", str(spark.folder / "known_hosts")]
    return ["127.0.0.1", "--port", str(server.port), *files, *words]


def test_a_spark_by_ssh(spark: Desk, server: Server) -> None:
    prints = ["--fingerprint", fingerprint(server.host_keys[0])]
    status, out, err = spark.init("--yes", *by_ssh(spark, server, "--user", USER, *prints))
    assert status == 0, err
    assert "127.0.0.1 accepts the key for nvidia, without a password" in out
    assert yaml.load(spark.file.read_text(), yaml.CSafeLoader)["sparks"]["hosts"]["spark1"] == {
        "ansible_host": "127.0.0.1",
        "ansible_port": server.port,
        "ansible_ssh_private_key_file": str(spark.folder / "key"),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={spark.folder}/known_hosts",
    }
    assert yaml.load(spark.file.read_text(), yaml.CSafeLoader)["sparks"]["vars"]["ansible_user"] == USER
    # The toolkit reads what init wrote, over the same connection.
    variables = ("-e", "ansible_become=false", "-e", f"vllm_hub_dir={spark.folder}/hub")
    status, out, err = spark.run(PROGRAM, "plan", "-i", str(spark.site), *variables)
    assert (status, err) == (0, ""), out
    assert "qwen on spark1: go" in out


def test_user_and_host_key_are_asked_for(spark: Desk, server: Server) -> None:
    questions = {
        f"User of the first start of 127.0.0.1 [{getpass.getuser()}]:": USER,
        "Are they equal? (yes/no)": "yes",
        "Recipe [qwen3.6-35b-a3b-nvfp4-mtp]:": "",
    }
    status, shown = terminal.typed(spark.argv(*by_ssh(spark, server, "--use", "many")), spark.environment, questions)
    assert status == 0, shown
    assert yaml.load(spark.file.read_text(), yaml.CSafeLoader)["sparks"]["vars"]["ansible_user"] == USER


@pytest.mark.parametrize("fault", ["password", "host key"])
def test_a_fault_of_the_contact_is_its_refusal(spark: Desk, server: Server, fault: str) -> None:
    words = ["--yes", *by_ssh(spark, server, "--user", USER, "--fingerprint", fingerprint(server.host_keys[0]))]
    expected = "does not accept this password for nvidia"
    if fault == "password":
        spark.environment[ssh.PASSWORD_VARIABLE] = "another"
    else:
        known = f"[127.0.0.1]:{server.port} ssh-ed25519 {new_key('ed25519', spark.folder / 'old').get_base64()}\n"
        (spark.folder / "known_hosts").write_text(known)
        expected = "Fix: if the Spark was reinstalled, `ssh-keygen -R"
    status, _, err = spark.init(*words)
    assert status == 1
    assert expected in err
    assert not spark.site.exists()
