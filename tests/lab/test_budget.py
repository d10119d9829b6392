"""The budget: what counts as a line, which room a file counts for, and when a number is red."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

from lab import budget
from vllm_spark.core import paths

COUNTED = {
    "": 0,
    "x = 1\n": 1,
    "# why\n\nx = 1  # why\n": 1,
    '"""A module."""\n\nx = 1\n': 1,
    'def f():\n    """Return one.\n\n    Raises nothing."""\n    return 1\n': 2,
    'class C:\n    """A class."""\n\n    async def f(self):\n        """Wait."""\n': 2,
    'TEXT = """one\n\nthree"""\n': 3,
    '"""A module."""\n"""no docstring"""\n': 1,
    "f(\n    1,\n)\n": 3,
    "def f(): return 1\n": 1,
}
BUDGET = {"rooms": {"src": 0, "src/a": 1, "tests": 5}, "others": {"roles/*.yml": 1, "*.sh": 2}}


def tree(root: Path, **files: str) -> list[str]:
    names = {name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()}
    for name, text in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return list(names)


@pytest.mark.parametrize("text", COUNTED)
def test_a_line_of_code_holds_a_token_and_no_docstring(text: str) -> None:
    assert budget.code_lines(text) == COUNTED[text]


def test_other_files_count_without_blank_lines_and_comments() -> None:
    assert budget.other_lines("---\n# why\n\na: 1\n", ".yml") == 2
    assert budget.other_lines("-- why\nlocal a = 1\n", ".lua") == 1
    assert budget.other_lines("docker run \\\n  --rm x\n", ".j2") == 2


def test_a_file_counts_for_the_longest_path_above_it(tmp_path: Path) -> None:
    names = tree(
        tmp_path,
        src__a__x_dot_py="x = 1\n",
        src__ab__x_dot_py="x = 1\ny = 1\n",
        roles__r__t__m_dot_yml="a: 1\n",
        x_dot_sh="ls\n",
    )
    (tmp_path / "src/a/link.py").symlink_to("x.py")
    lines = budget.counted(tmp_path, [*names, "src/a/link.py", "src/deleted.py"], BUDGET)
    assert lines == {"src": 2, "src/a": 1, "tests": 0, "roles/*.yml": 1, "*.sh": 1}
    (fault,) = budget.over(lines, BUDGET)
    assert fault.startswith("src has 2 lines of code — expected: at most 0 (budget.toml). Fix: ")


def test_every_package_has_a_number_and_every_number_has_files() -> None:
    document = tomllib.loads((paths.ROOT / budget.FILE).read_text())
    packages = {
        str(file.parent.relative_to(paths.ROOT)) for file in (paths.ROOT / "src/vllm_spark").glob("*/__init__.py")
    }
    assert packages <= set(document["rooms"])
    assert all((paths.ROOT / room).exists() for room in document["rooms"])
    assert all(any(paths.ROOT.glob(pattern.replace("*", "**/*", 1))) for pattern in document["others"])


@pytest.mark.parametrize(("load", "allowed", "red"), [(0.0, 60, 0), (0.0, 0, 1), (9.0, 0, 0)])
def test_cpu_seconds_are_judged_on_an_idle_machine(
    load: float, allowed: int, red: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert budget.measured("unit", [sys.executable, "-c", ""], {"cpu_seconds": {"unit": allowed}}) == red
    assert f"at most {allowed}" in capfd.readouterr().err


def test_a_red_suite_stays_red() -> None:
    assert budget.measured("slow", [sys.executable, "-c", "raise SystemExit(4)"], {"cpu_seconds": {"slow": 60}}) == 4
