"""`lock` finds the wheels of a recipe's packages for a Spark with the real pip, judged by uv."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import wheel_index
from vllm_spark.core.refusal import RefusedError
from vllm_spark.pinning import packages

ARM, BOTH = ("linux/arm64",), ("linux/amd64", "linux/arm64")
ANY = "py3-none-any"
SHELF = {
    # What the wish needs differs by the Python, the system and the machine.
    f"wish-1.0-{ANY}": "old; python_version < '3.13'\nnew; python_version >= '3.13'\nmac; sys_platform == 'darwin'\n"
    "arm; platform_machine == 'aarch64'",
    **{f"{name}-1-{ANY}": "" for name in ("old", "new", "mac", "cuda")},
    f"arm-1-{ANY}": "built>1",
    # Compiled ones: of another machine, of another Python, for another libc, and one without a file for a Spark.
    "built-2-cp312-cp312-manylinux_2_28_aarch64": "",
    "built-2-cp312-cp312-manylinux_2_28_x86_64": "",
    "built-2-cp313-cp313-manylinux_2_28_aarch64": "",
    "built-3-cp312-cp312-manylinux_2_99_aarch64": "",
    "x86-1-cp312-cp312-manylinux_2_28_x86_64": "",
    f"stuck-1-{ANY}": "built<1",
}
ARM_WHEELS = [f"arm-1-{ANY}", "built-2-cp312-cp312-manylinux_2_28_aarch64", f"old-1-{ANY}", f"wish-1.0-{ANY}"]
WISH = "wish==1.0"

# (pins, Python, platforms) -> the wheels, in the order of their names
FOUND: dict[tuple[tuple[str, ...], str, tuple[str, ...]], list[str]] = {
    ((WISH,), "3.12", ARM): ARM_WHEELS,
    (("Wish==1.0", "cuda==1"), "3.12", ARM): [*ARM_WHEELS[:2], f"cuda-1-{ANY}", *ARM_WHEELS[2:]],
    ((WISH,), "3.13", ARM): [
        f"arm-1-{ANY}",
        "built-2-cp313-cp313-manylinux_2_28_aarch64",
        f"new-1-{ANY}",
        ARM_WHEELS[-1],
    ],
}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    wheel_index.set_all(monkeypatch, wheel_index.write(tmp_path / "shelf", SHELF))
    return tmp_path / "shelf"


def by_uv(pins: tuple[str, ...], python: str) -> str:
    """Return the requirements that uv finds for a Spark."""
    words = ("--quiet", "--generate-hashes", "--only-binary=:all:", "--no-header", "--no-annotate", "--no-cache")
    target = (f"--python-version={python}", "--python-platform=aarch64-manylinux_2_35")
    argv = (str(Path(sys.executable).with_name("uv")), "pip", "compile", "-", *words, *target)
    return subprocess.run(argv, input="\n".join(pins), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("case", FOUND, ids=str)
def test_the_wheels_are_those_of_the_image_and_not_of_this_machine(
    case: tuple[tuple[str, ...], str, tuple[str, ...]], shelf: Path
) -> None:
    answer = packages.resolve(*case)
    lines = answer.value.splitlines()
    assert lines == [wheel_index.line(shelf, file) for file in FOUND[case]]
    assert answer.origin == "this machine"
    judged = by_uv(*case[:2])
    assert [line.partition(" ")[0] for line in lines] == re.findall(r"^[a-z0-9]+==[0-9.]+", judged, re.M)
    assert all(sha256 in judged for sha256 in re.findall("sha256:[0-9a-f]{64}", answer.value))


def test_two_platforms_have_both_hashes(shelf: Path) -> None:
    built = packages.resolve(("built==2",), "3.12", BOTH).value
    assert built.count("--hash=") == 2
    assert built == " --hash=".join(
        [
            wheel_index.line(shelf, "built-2-cp312-cp312-manylinux_2_28_x86_64"),
            wheel_index.line(shelf, "built-2-cp312-cp312-manylinux_2_28_aarch64").partition(" --hash=")[2],
        ]
    )


def test_a_pin_keeps_the_spelling_of_its_version(shelf: Path) -> None:
    assert packages.resolve(("cuda==1.0.0",), "3.12", ARM).value.startswith("cuda==1.0.0 --hash=")
    assert shelf.is_dir()


# pins -> (id of the refusal, a part of the message)
REFUSED = {
    ("x86==1",): ("no-wheels", "x86==1 for Python 3.12 on linux/arm64: No matching distribution found for x86==1"),
    ("absent==1",): ("no-wheels", "No matching distribution found for absent==1"),
    ("stuck==1", "built==2"): ("no-wheels", "ResolutionImpossible"),
}


@pytest.mark.parametrize("pins", REFUSED, ids=str)
def test_packages_without_wheels_are_refused(pins: tuple[str, ...], shelf: Path) -> None:
    del shelf
    with pytest.raises(RefusedError) as refused:
        packages.resolve(pins, "3.12", ARM)
    (refusal,) = refused.value.refusals
    assert (refusal.id, REFUSED[pins][1] in refusal.what) == (REFUSED[pins][0], True), refusal.what


def test_a_python_without_pip_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RefusedError, match=f"has no pip .* Fix: {re.escape(sys.executable)} -m ensurepip"):
        packages.resolve((WISH,), "3.12", ARM)


def test_a_pip_that_judges_markers_for_its_own_python_is_refused(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would choose what this machine needs. A later pip may keep its markers elsewhere."""
    assert shelf.is_dir()
    program = "import runpy, sys\ndel sys.argv[1]\nrunpy.run_module('pip', run_name='__main__')\n"
    (tmp_path / "plain_pip.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(packages, "ELSEWHERE", "plain_pip")
    with pytest.raises(RefusedError, match="judges only for its own Python"):
        packages.resolve(("cuda==1",), "3.99", ARM)
