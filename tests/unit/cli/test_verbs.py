"""Each playbook as a command: which are there, what reaches ansible-playbook, and what is refused before it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

import typed_commands
from vllm_spark.cli import main, playbook, verbs
from vllm_spark.core import paths, removed

FOLDER = paths.ROOT / "playbooks"
WIDTH = 80


class StartedError(Exception):
    """Stands in for the program that os.execve becomes."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The argv that the command becomes, without ansible-playbook itself."""
    argv: list[str] = []

    def become(program: str, words: list[str], environment: dict[str, str]) -> None:
        assert Path(program) == Path(sys.executable).with_name("ansible-playbook")
        assert environment["ANSIBLE_CONFIG"]
        argv[:] = words[1:]
        raise StartedError

    monkeypatch.setattr(os, "execve", become)
    return argv


def test_each_playbook_is_a_verb_with_the_name_of_its_play() -> None:
    found = verbs.found()
    assert sorted([*found, "sbom"]) == sorted(file.stem for file in FOLDER.glob("*.yml"))
    for name, command in found.items():
        text = (FOLDER / f"{name}.yml").read_text()
        plays = yaml.load(text, yaml.CSafeLoader)
        if len(plays) == 1:
            assert command.help.lower() == plays[0]["name"].lower()
        else:
            assert f": {command.help}\n" in text
    assert {command.group for command in (*found.values(), *main.COMMANDS.values())} == set(main.GROUPS)


def test_the_help_has_a_line_for_each_that_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parse(["--help"])
    lines = capsys.readouterr().out.splitlines()
    both = [name for name in main.COMMANDS if name in verbs.found() and main.COMMANDS[name].words]
    assert both == ["bench", "plan"]
    rows = [line for line in lines if line.startswith("  ") and not line.startswith("  -")]
    assert len(rows) == len({*main.COMMANDS, *verbs.found()}) + len(both)
    assert [line for line in rows if len(line) > WIDTH] == []


# Typed -> passed, the options that the command knows first.
PASSED = {
    "-l spark1 --check --diff -K": "-l spark1 --check --diff -K",
    '-e to=second -e {"a":"b"} -i one -i two,': '-e to=second -e {"a":"b"} -i one -i two,',
    "-f 10 -l spark1 --vault-password-file FILE": "-l spark1 -f 10 --vault-password-file FILE",
    "-Kvv --limit=spark1": "-K -v -v --limit spark1",
    "": "",
}


@pytest.mark.parametrize("verb", ["status", "plan", *removed.DOCUMENTS])
def test_json_is_a_variable_of_the_verbs_that_have_or_had_a_document(verb: str, started: list[str]) -> None:
    with pytest.raises(StartedError):
        main.main([verb, "--json", "-l", "spark1"])
    assert started == ["-ejson=true", "-l", "spark1", str(paths.ROOT / f"{verb}.yml")]


@pytest.mark.parametrize("words", [[], ["site.cdx.json", "-l", "spark1"]])
def test_a_removed_command_and_its_playbook_say_what_serves(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["sbom", *words])
    assert "Fix: vllm-spark lock. It writes lock.yml" in capsys.readouterr().err
    assert "sbom" not in main.overview(verbs.found())
    ((task,),) = (play["tasks"] for play in yaml.load((FOLDER / "sbom.yml").read_text(), yaml.CSafeLoader))
    assert task["ansible.builtin.fail"]["msg"] == str(removed.COMMANDS["sbom"])


# Typed -> the variable of the playbook.
OWN_OPTIONS = {
    "up --yes": "-eup_yes=true",
    "notify --test": "-enotify_test=true",
    "fabric --timings": "-etime_all_reduce=true",
    "switch --to second": "-eto=second",
    "switch --to=a;b": "-eto='a;b'",
}


@pytest.mark.parametrize("typed", OWN_OPTIONS)
def test_an_option_of_a_verb_is_a_variable(typed: str, started: list[str]) -> None:
    with pytest.raises(StartedError):
        main.main([*typed.split(), "-l", "spark1"])
    assert started == [OWN_OPTIONS[typed], "-l", "spark1", str(paths.ROOT / f"{typed.split(maxsplit=1)[0]}.yml")]


def test_a_spark_is_lent_by_its_name(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartedError):
        main.main(["lend", "spark1", "--gib", "40", "--hours", "3", "--check"])
    variables = ["-elend_gib=40", "-elend_hours=3", "--check", "-elend_spark=spark1"]
    assert started == [*variables, str(paths.ROOT / "lend.yml")]
    with pytest.raises(SystemExit):
        main.main(["lend", "--end"])
    assert "required: SPARK" in capsys.readouterr().err


def test_each_option_of_a_verb_sets_a_variable_that_something_reads() -> None:
    found = [(verb, option) for verb in verbs.found() for option in verbs.options(verb)]
    assert {verb for verb, _ in found} == {"fabric", "lend", "notify", "switch", "up"}
    assert {option.variable for _, option in found} <= typed_commands.variables()
    written = [line for file in FOLDER.glob("*.yml") for line in file.read_text().splitlines()]
    assert len(found) == sum(": -e " in line for line in written)


@pytest.mark.parametrize("typed", PASSED)
@pytest.mark.parametrize("verb", ["switch", "plan", "bench"])
def test_every_option_reaches_the_playbook(verb: str, typed: str, started: list[str]) -> None:
    with pytest.raises(StartedError):
        main.main([verb, *typed.split()])
    assert started == [*PASSED[typed].split(), str(paths.ROOT / f"{verb}.yml")]


def test_a_word_or_an_option_of_the_command_is_not_the_verb(started: list[str]) -> None:
    recipe = "gemma-4-26b-a4b-fp8"
    assert main.parse(["plan", recipe]).recipe == recipe
    assert main.parse(["plan", "--streams", "4", recipe]).streams == 4
    assert main.parse(["plan", "--site=FILE", recipe]).recipe == recipe
    assert main.parse(["bench", "http://spark1:8000"]).bench_command == "url"
    assert main.parse(["bench", "report", "FILE"]).bench_command == "report"
    assert started == []


def test_the_help_of_a_name_that_is_both_explains_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.parse(["plan", "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "--min-speed" in printed
    assert "--ask-become-pass" in printed


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["depoy", "-K"], "Fix: vllm-spark deploy -K."),
        (["st"], "Fix: vllm-spark status. Others begin alike: stop."),
        (["recipies"], "Fix: vllm-spark recipes."),
        (["xyzzy", "-K"], "Fix: vllm-spark --help."),
        (["deploy", "spark1"], "Fix: vllm-spark deploy. -l HOSTS selects Sparks"),
        (["deploy", "-K", "rollback.yml", "-e", "a=b c"], "Fix: vllm-spark deploy -K -e 'a=b c'."),
        (["deploy", "-K", "--lmit=spark1"], "Fix: vllm-spark deploy -K --limit=spark1."),
        (["deploy", "--lmit", "spark1", "-K"], "Fix: vllm-spark deploy --limit spark1 -K."),
        (["up", "--yse"], "Fix: vllm-spark up --yes."),
        (["plan", "--jsno"], "Fix: vllm-spark plan --json."),
        (["status", "--list-hots"], "Fix: vllm-spark status --list-hosts."),
        (["status", "-Z"], "Fix: vllm-spark status --help."),
        (["logs", "gemma", "--folow"], "Fix: vllm-spark logs gemma --follow."),
    ],
    ids=" ".join,
)
def test_a_wrong_word_is_refused_with_the_command_that_was_meant(
    words: list[str], fix: str, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == main.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert fix in printed.err
    assert "See `vllm-spark runbook wrong-command`" in printed.err
    assert started == []


@pytest.mark.parametrize(
    ("installed", "fix"),
    [
        (False, "Fix: make setup. Then `.venv/bin/vllm-spark deploy`."),
        (True, "Fix: install the wheel again, such as by `uv tool install --force FILE.whl`."),
    ],
)
def test_without_ansible_the_command_that_installs_it_is_named(
    installed: bool, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(paths, "IS_INSTALLED", installed)
    assert main.main(["deploy"]) == 1
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize("how", ["option", "variable"])
def test_an_inventory_without_a_host_is_refused_before_ansible(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], started: list[str]
) -> None:
    """Ansible asks no plugin about such a folder, and its own line has no fix."""
    (tmp_path / "group_vars").mkdir()
    if how == "variable":
        monkeypatch.setenv("ANSIBLE_INVENTORY", str(tmp_path))
    options = ["--inventory", str(tmp_path)] if how == "option" else []
    for typed in (["status", "--json"], ["key", "list"], ["logs", "tiny"]):
        assert main.main([*typed, *options]) == 1
        out, err = capsys.readouterr()
        assert f"{tmp_path} names no host, it has group_vars — expected: hosts.yml there" in err
        assert err.count("Fix: ") == err.count("\n") == 1
        assert ('"no-inventory"' in out) == ("--json" in typed)
    assert started == []


@pytest.mark.parametrize(("script", "status"), [("exit 4", 4), ("kill -TERM $$", 143)])
def test_a_playbook_that_is_waited_for_has_the_status_of_a_shell(script: str, status: int) -> None:
    assert playbook.run(["sh", "-c", script]) == status


def test_ctrl_c_leaves_a_playbook_the_time_to_end(tmp_path: Path) -> None:
    """subprocess.run would kill it a quarter of a second after Ctrl-C."""
    done = tmp_path / "done"
    script = f"trap 'sleep 0.6; touch {done}; exit 130' INT; kill -INT {os.getpid()} $$; sleep 5"
    assert playbook.run(["sh", "-c", script]) == 130
    assert done.exists()
