"""Keys of persons: only hashes leave this machine, and the argv of the playbook has no key."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.fake_ansible import FakeRun
from project_files import load_module
from vllm_spark.cli import main, playbook
from vllm_spark.core import paths
from vllm_spark.edge import config, persons
from vllm_spark.node import edge_key, edge_quota, host_layout
from vllm_spark.node.edge_key import KeyEntry


def test_keys_are_long_and_never_the_same() -> None:
    keys = {persons.new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(len(one) > 50 and one.startswith("sk-spark-") for one in keys)
    assert persons.key_hash("sk-a") == hashlib.sha256(b"sk-a").hexdigest()


@pytest.mark.parametrize("name", ["ada", "Ada.Lovelace", "laptop-2", "x" * config.MAX_USER])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert persons.name_refusal(name) is None


@pytest.mark.parametrize("name", ["", "a b", "a\n", "-e", "a;b", "%[src]", "x" * 65, "ä"])
def test_another_name_is_refused(name: str) -> None:
    refusal = persons.name_refusal(name)
    assert refusal is not None
    assert refusal.id == "edge-key-name"


class Ran:
    """Stands in for subprocess.run."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.argv: list[str] = []

    def __call__(self, argv: list[str], **_: object) -> SimpleNamespace:
        self.argv = argv
        return SimpleNamespace(returncode=self.status)


@pytest.mark.parametrize("status", [0, 2])
def test_a_key_is_printed_if_every_spark_has_it(
    status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(status)
    monkeypatch.setattr(subprocess, "run", ran)
    assert main.main(["key", "add", "ada", "-i", "inventories/home", "-l", "spark1"]) == status
    printed = capsys.readouterr().out
    options = dict(zip(ran.argv[1:-1:2], ran.argv[2:-1:2], strict=True)) | {"-e": ""}
    assert options == {"-i": "inventories/home", "-l": "spark1", "-e": ""}
    assert "key_state=present" in ran.argv
    assert "key_name=ada" in ran.argv
    assert persons.PREFIX not in " ".join(ran.argv)
    if status == 0:
        shown = printed.rpartition(" ")[2].strip()
        assert f"key_hash={persons.key_hash(shown)}" in ran.argv
    else:
        assert printed == ""


def test_revoke_and_list_print_no_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(0)
    monkeypatch.setattr(subprocess, "run", ran)
    assert main.main(["key", "revoke", "ada"]) == 0
    assert ran.argv[1:5] == ["-e", "key_state=absent", "-e", "key_name=ada"]
    assert main.main(["key", "list"]) == 0
    assert ran.argv[1:-1] == ["--check"]
    assert main.main(["key", "revoke", "a b"]) == 1
    assert main.main(["key", "add", "ada", "-KC"]) == 0
    assert ran.argv[1:3] == ["-K", "-C"]
    assert capsys.readouterr().out == ""


def test_a_right_is_one_of_a_new_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(0)
    monkeypatch.setattr(subprocess, "run", ran)
    assert main.main(["key", "add", "ada"]) == 0
    assert "key_may_switch=true" not in ran.argv
    assert main.main(["key", "add", "ada", "--may-switch"]) == 0
    assert ran.argv[ran.argv.index("key_may_switch=true") - 1] == "-e"
    assert main.main(["key", "add", "ci", "--class", "batch", "--tokens-a-day", "1000000"]) == 0
    assert {"key_class=batch", "key_tokens_a_day=1000000"} <= {*ran.argv}
    capsys.readouterr()
    for action in (["revoke", "ada"], ["list"]):
        for option in (["--may-switch"], ["--class", "batch"], ["--tokens-a-day", "5"]):
            assert main.main(["key", *action, *option]) == 1
            assert f"key {action[0]} has {option[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", ["0", "-1", "1.5", "many", "1000000000001", "²"])
def test_a_quota_is_a_number(tokens: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["key", "add", "ci", f"--tokens-a-day={tokens}"])
    assert "expected: a whole number from 1 to 1000000000000" in capsys.readouterr().err


# An entry of the map -> what it says, and what a person reads of it.
ENTRIES = {
    "ada": (KeyEntry("ada"), "ada"),
    "ada/switch": (KeyEntry("ada", may_switch=True), "ada (may switch)"),
    "ci//batch": (KeyEntry("ci", batch=True), "ci (batch)"),
    "ci///5000": (KeyEntry("ci", tokens_a_day=5000), "ci (5000 tokens a day)"),
    "ci/switch/batch/7": (KeyEntry("ci", True, True, 7), "ci (may switch, batch, 7 tokens a day)"),
}


@pytest.mark.parametrize("text", ENTRIES)
def test_an_entry_of_the_map_is_read_as_it_is_written(text: str) -> None:
    entry, shown = ENTRIES[text]
    assert (edge_key.parse(text), str(entry), entry.shown) == (entry, text, shown)


@pytest.mark.parametrize("text", ["ada/", "ada/other", "ada//other", "ada///many", "ada///²", "ada////more"])
def test_fields_that_no_toolkit_has_written_say_nothing(text: str) -> None:
    assert edge_key.parse(text) == KeyEntry("ada")


def test_the_clones_configuration_is_used_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    assert playbook.environment()["ANSIBLE_CONFIG"].endswith("/ansible.cfg")
    monkeypatch.setenv("ANSIBLE_CONFIG", "/mine.cfg")
    assert playbook.environment()["ANSIBLE_CONFIG"] == "/mine.cfg"


@pytest.mark.parametrize(
    ("state", "name", "expected"),
    [
        ("listed", "", {"1": "ada", "2": "bob"}),
        ("present", "eve", {"1": "ada", "2": "bob", "9": "eve"}),
        ("present", "ada", {"2": "bob", "9": "ada"}),
        ("absent", "ada", {"2": "bob"}),
        ("absent", "eve", {"1": "ada", "2": "bob"}),
    ],
)
def test_a_person_has_one_key(state: str, name: str, expected: dict[str, str]) -> None:
    module = load_module("vllm_edge_key_file")
    assert module.desired({"1": "ada", "2": "bob"}, state, KeyEntry(name), "9") == expected


def test_the_action_names_the_persons() -> None:
    keys = {"2": "bob", "1": "ada"}
    run = FakeRun(modules={"vllm_edge_key_file": {"names": [], "keys": keys, "edge": True, "changed": True}})
    run.act("vllm_edge_key", state="absent", name="eve", hash="")
    assert run.lines == ["spark1  keys: ada, bob"]
    keys["2"] = "bob/switch/batch"
    run = FakeRun(modules={"vllm_edge_key_file": {"names": [], "keys": keys, "edge": True}})
    run.act("vllm_edge_key", state="listed", name="", hash="")
    assert run.lines == ["spark1  keys: ada, bob (may switch, batch)"]
    run = FakeRun(modules={"vllm_edge_key_file": {"names": [], "keys": {}, "edge": False}})
    run.act("vllm_edge_key", state="listed", name="", hash="")
    assert run.lines == ["spark1  has no edge"]
    with pytest.raises(Exception, match="expected: a name of at most 64 letters"):
        run.act("vllm_edge_key", state="present", name="a b", hash="1")


def test_two_keys_of_a_person_are_named() -> None:
    hashes = {"spark1": {"a" * 64: "ada/switch", "b" * 64: "bob"}, "spark2": {"c" * 64: "ada", "b" * 64: "bob"}}
    run = FakeRun(hostvars={host: {"__vllm_edge_keys": {"keys": keys}} for host, keys in hashes.items()})
    run.act("vllm_edge_key", state="compared", name="")
    assert run.lines == [
        "ada has 2 different keys: aaaaaaaa on spark1, cccccccc on spark2. "
        "Fix: vllm-spark key add ada. It gives one key for all."
    ]
    run.hostvars["spark2"] = run.hostvars["spark1"]
    run.lines.clear()
    run.act("vllm_edge_key", state="compared", name="ada")
    assert run.lines == []


def test_a_key_that_replaces_another_one_says_what_ends_and_what_stays() -> None:
    done = {"names": ["ada"], "edge": True, "replaced": True, "keys": {"a" * 64: "ada"}}
    run = FakeRun(modules={"vllm_edge_key_file": done})
    run.act("vllm_edge_key", state="present", name="ada", hash="a" * 64)
    assert run.lines == ["spark1  keys: ada; the earlier key of ada has ended"]
    alone = FakeRun(hostvars={"spark1": {"__vllm_edge_keys": done}}, hosts=["spark1"])
    alone.act("vllm_edge_key", state="compared", name="ada")
    assert alone.lines == [
        "spark2: not in this run, so an earlier key stays valid there. vllm-spark key list shows it."
    ]


@pytest.mark.parametrize("text", [*ENTRIES, "ada///many", "ada///²", "ci///0"])
def test_the_program_that_counts_reads_the_same_quota(text: str) -> None:
    entry = edge_key.parse(text)
    expected = {entry.person: entry.tokens_a_day} if entry.tokens_a_day else {}
    assert edge_quota.quotas(f"# SHA-256 of a key, person///5\n{'a' * 64} {text}\n") == expected


@pytest.mark.parametrize(
    ("keys", "spent", "counts"),
    [
        ("a ada", "", False),
        ("# ada///5", "", False),
        ("a ci//batch", "", False),
        ("a ci///5", "", True),
        ("", "x 1", True),
    ],
)
def test_without_a_quota_the_timer_starts_nothing(tmp_path: Path, keys: str, spent: str, counts: bool) -> None:
    unit = (paths.TEMPLATES / host_layout.EDGE_QUOTA_UNIT).read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecCondition=/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    for path, text in ((host_layout.EDGE_KEYS, keys), (host_layout.EDGE_SPENT, spent)):
        (tmp_path / path.rpartition("/")[2]).write_text(text)
        command = command.replace(path.rpartition("/")[0], str(tmp_path))
    done = subprocess.run(["sh", "-c", command.replace("$$", "$")], check=False)
    assert done.returncode == (0 if counts else 1)
