"""The fix of each message: a command that runs as printed, or a sentence with its commands in backticks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import typed_commands
from vllm_spark.core import paths, run_command, strict_yaml
from vllm_spark.core.refusal import Fix, register
from vllm_spark.core.run_command import ThisRun, typed

SOURCES = sorted(file for folder in ("src", "plugins") for file in (paths.ROOT / folder).rglob("*.py"))
# What stands for a value in a template: a word that every parser takes.
VALUE = "VALUE"
# What stands before the command of a message.
MARK = re.compile(r"(?:Fix|Next): ")
# A verb of this toolkit as the start of a command.
VERB = re.compile(r"(?:ansible-playbook|vllm-spark (?:deploy|status|switch|verify|stop|logs)\b)[^`]*")
# Names of texts that end up in a fix.
NAMED_FIX = re.compile(r"(?:^|_)(?:fix|fixes|FIX|FIXES|allow|how_to_stop|WHOLE_RUN|KERNEL_LOG)(?:$|_)")


def text_of(node: ast.expr) -> str | None:
    """Return a text with its placeholders filled, or None if it is no literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else value_of(part) for part in node.values)
    return None


def value_of(part: ast.expr) -> str:
    """Return what stands for a placeholder of an f-string: its constant of that name, or VALUE."""
    assert isinstance(part, ast.FormattedValue)
    named = part.value.id if isinstance(part.value, ast.Name) else ""
    known = [text_of(value) for value in assigned().get(named, ()) if named.isupper()]
    return known[0] if known and known[0] else VALUE


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Return the nodes of each file, walked once."""
    return {file: list(ast.walk(ast.parse(file.read_text()))) for file in SOURCES}


@cache
def assigned() -> dict[str, list[ast.expr]]:
    """Return the values of each name, and what each function returns."""
    found: dict[str, list[ast.expr]] = {}
    for tree in nodes().values():
        for node in tree:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    pairs = (
                        zip(target.elts, node.value.elts, strict=True)
                        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                        else [(target, node.value)]
                    )
                    for name, value in pairs:
                        if isinstance(name, ast.Name):
                            found.setdefault(name.id, []).append(value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name) and node.value:
                found.setdefault(node.target.id, []).append(node.value)
            elif isinstance(node, ast.FunctionDef):
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                found.setdefault(node.name, []).extend(returned)
    return found


@cache
def positions() -> dict[str, int]:
    """Return the place of the parameter `fix` of each function and class that has one."""
    found: dict[str, int] = {}
    for tree in nodes().values():
        owners = {id(each): node.name for node in tree if isinstance(node, ast.ClassDef) for each in node.body}
        for node in tree:
            if isinstance(node, ast.FunctionDef) and "fix" in (names := [each.arg for each in node.args.args]):
                found[owners.get(id(node), node.name)] = names.index("fix") - ("self" in names)
    return found


def positional_fix(call: ast.Call) -> ast.expr | None:
    """Return the fix that a call passes by its place."""
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    return call.args[positions()[name]] if positions().get(name, len(call.args)) < len(call.args) else None


def fixes_of(node: ast.expr) -> Iterator[Fix | str]:
    """Yield each fix that an expression can be: its literals, and those behind a name or a function of its module that
    says it has a fix."""
    if (text := text_of(node)) is not None:
        yield text
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fix":
        command, remark = (*map(text_of, node.args), "", "")[:2]
        yield Fix(command if command is not None else VALUE, remark or "")
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        yield from fixes_of(node.args[0])
    elif isinstance(node, ast.IfExp):
        yield from (*fixes_of(node.body), *fixes_of(node.orelse))
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from fixes_of(value)
    elif isinstance(node, ast.Subscript):
        yield from fixes_of(node.value)
    elif isinstance(node, ast.Tuple):
        yield from (each for element in node.elts for each in fixes_of(element))
    else:
        called = node.func if isinstance(node, ast.Call) else node
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name.isupper() or NAMED_FIX.search(name):
            for value in assigned().get(name, ()):
                if value is not node:
                    yield from fixes_of(value)


@cache
def fixes() -> tuple[tuple[str, Fix | str], ...]:
    """Return (place, fix) of every `fix` of the code: arguments, constants named so, and texts after "Fix: "."""
    return tuple(found_fixes())


def found_fixes() -> Iterator[tuple[str, Fix | str]]:
    for file, tree in nodes().items():
        place = str(file.relative_to(paths.ROOT))
        inner = {id(part) for node in tree if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in tree:
            if isinstance(node, ast.keyword) and node.arg == "fix" and not isinstance(node.value, ast.Name):
                yield from ((f"{place}:{node.value.lineno}", fix) for fix in fixes_of(node.value))
            elif isinstance(node, ast.Call) and (fix := positional_fix(node)):
                yield from ((f"{place}:{fix.lineno}", each) for each in fixes_of(fix))
            elif isinstance(node, ast.expr) and id(node) not in inner and MARK.search(text := text_of(node) or ""):
                yield from ((f"{place}:{node.lineno}", fix) for fix in printed(text))
    for name, values in assigned().items():
        if NAMED_FIX.search(name):
            yield from ((name, fix) for value in values for fix in fixes_of(value))


def printed(text: str) -> Iterator[Fix | str]:
    """Yield the fix of each message in a text: a command up to the full stop behind it, or a sentence."""
    for part in MARK.split(text)[1:]:
        fix = re.split(r"\s*(?:See docs|(?<=\. )VALUE$)", part)[0]
        command, _, remark = fix.partition(". ")
        yield Fix(command.removesuffix("."), remark) if typed_commands.BEGINS.match(fix) else fix


def rows() -> Iterator[tuple[str, Fix | str]]:
    """Yield (place, fix) of every fix in the roles, in the data of the doctor and of the known issues."""

    def walk(value: object, place: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict):
            for key, each in value.items():
                if key in {"fix", "instead", "hint"} and isinstance(each, str):
                    yield place, each
                yield from walk(each, place)
        elif isinstance(value, list):
            for each in value:
                yield from walk(each, place)

    for file in (paths.ROOT / "roles").rglob("*.yml"):
        text = re.sub(r"{{.*?}}", VALUE, " ".join(file.read_text().split()))
        yield from ((str(file.relative_to(paths.ROOT)), fix) for fix in printed(text))
    files = [*(paths.ROOT / "src/vllm_spark/doctor").glob("*.yml"), paths.RECIPES / "compatibility.yml"]
    for file in files:
        yield from walk(strict_yaml.load_own(file.read_text()), file.name)


def faults(fix: Fix | str) -> Iterator[str]:
    """Yield what is wrong with a fix."""
    if isinstance(fix, Fix):
        if fix.command != VALUE and (fault := typed_commands.wrong(fix.command.format_map(Filled()))):
            yield f"{fix.command}: {fault}"
        yield from typed_commands.wrong_text(fix.remark)
    elif typed_commands.BEGINS.match(fix):
        yield f"{fix}: a text that begins with a command; expected: Fix(command, remark)"
    else:
        yield from typed_commands.wrong_text(fix)


class Filled(dict[str, str]):
    """Values of a template of str.format."""

    def __missing__(self, key: str) -> str:
        return VALUE


JUDGED = [
    (Fix("ansible-playbook pull.yml", "What has arrived is kept."), ""),
    ("improve the airflow: `ssh -t VALUE nvidia-smi -q -d PERFORMANCE,TEMPERATURE`.", ""),
    ("wait until ssh answers", ""),
    ("ansible-playbook pull.yml again when it answers: what has arrived is kept.", "begins with a command"),
    (Fix("ansible-playbook pull.yml again when it answers"), "there is no playbook again"),
    (Fix("ansible-playbook lock.yml -e lokc_accept=NAME"), "nothing reads the variable lokc_accept"),
    (Fix("vllm-spark key add NAME with such a name"), "unrecognized arguments"),
    ("change it, then sudo netplan apply on both", "a command among the words"),
    ("see docker exec {name} -it in it", "a command among the words"),
    ("read `journalctl -u vllm@<deployment>.service`", "<deployment> is a redirection"),
    ("`ssh HOST sudo journalctl -u x` shows it", "no terminal"),
    (Fix("ssh -t HOST sudo journalctl -u x | vllm-spark doctor -"), "nobody sees it"),
    (Fix("ssh HOST journalctl -u x | grep y > z"), ""),
    (Fix('ssh -t H sudo grep -E "sha256:|source=" /etc/vllm-spark/N/previous/launch'), "ssh joins the words"),
    (Fix("ssh -t H sudo docker exec N sh -c 'ulimit -l'"), "ssh joins the words"),
    (Fix("ssh -t H 'sudo docker exec N sh -c \"ulimit -l\"'"), ""),
    (Fix("docker stop NAME"), "needs sudo"),
    (Fix("echo 'x"), "unexpected EOF"),
]


@pytest.mark.parametrize(("fix", "expected"), JUDGED)
def test_the_judge_sees_each_kind_of_fault(fix: Fix | str, expected: str) -> None:
    found = "; ".join(faults(fix))
    assert expected in found
    assert bool(expected) == bool(found)


def test_every_fix_of_the_code_is_a_command_or_a_sentence() -> None:
    found = fixes()
    assert len(found) > 250
    assert sum(isinstance(fix, Fix) for _, fix in found) > 40
    assert [f"{place}: {fault}" for place, fix in found for fault in faults(fix)] == []


def test_every_fix_of_an_installed_toolkit_is_a_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no playbook in the working directory."""
    monkeypatch.setattr(paths, "IS_INSTALLED", True)
    changed = [
        Fix(typed(fix.command), typed(fix.remark)) if isinstance(fix, Fix) else typed(fix)
        for _, fix in (*fixes(), *rows())
        if typed(str(fix)) != str(fix)
    ]
    assert len(changed) > 150
    assert [fault for fix in changed for fault in faults(fix)] == []
    assert not any(re.search(r"ansible-playbook (?!sandbox)\S*yml", str(fix)) for fix in changed)
    message = register("port-taken", runbook="port-taken")(
        what="a", expected="b", fix=Fix("ansible-playbook stop.yml -K")
    )
    assert "Fix: vllm-spark stop -K." in str(message)
    assert message.to_json()["fix"]["command"] == "vllm-spark stop -K"


@pytest.mark.parametrize("by_command", [True, False])
def test_every_fix_is_a_command_with_the_options_of_a_run_too(by_command: bool) -> None:
    options = [("-i", "inventories/other"), ("-l", "spark1,spark2"), ("-K", ""), ("-e", "vllm_hub_dir=/x y")]
    with run_command.within(ThisRun(by_command=by_command, options=options)):
        changed = [
            Fix(typed(fix.command), typed(fix.remark)) if isinstance(fix, Fix) else typed(fix)
            for _, fix in (*fixes(), *rows())
            if typed(str(fix)) != str(fix)
        ]
        assert [fix for fix in map(str, changed) if typed(fix) != fix] == []
    assert len(changed) > 150
    assert [fault for fix in changed for fault in faults(fix)] == []
    printed = [command for fix in map(str, changed) for command in VERB.findall(fix)]
    assert [command for command in printed if " -i inventories/other" not in command or " -K" not in command] == []


def test_every_command_in_a_fix_of_the_data_runs_as_printed() -> None:
    found = list(rows())
    assert len(found) > 300
    assert [f"{place}: {fault}" for place, fix in found for fault in faults(fix)] == []
