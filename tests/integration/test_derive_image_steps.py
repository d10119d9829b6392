"""Build steps of a derived image: patches (compared with git apply), the overlay, and the constraints of pip."""

from __future__ import annotations

import difflib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pip
import pytest

from fakes import wheel_index
from vllm_spark.node import image_build
from vllm_spark.node.image_build import StepError

LINES = [f"line {number}\n" for number in range(1, 31)]
TEXT = "".join(LINES)


def changed(*edits: tuple[int, int, list[str]]) -> str:
    """Return TEXT with slices replaced, from the end so that earlier line numbers stay valid."""
    lines = list(LINES)
    for start, stop, new in sorted(edits, reverse=True):
        lines[start:stop] = new
    return "".join(lines)


def diff(old: str | None, new: str | None, path: str = "engine/part.py") -> str:
    """Return the output of `diff -u`; None is an absent file."""

    def lines(text: str | None) -> list[str]:
        return (text or "").splitlines(keepends=True)

    names = (f"a/{path}" if old is not None else "/dev/null", f"b/{path}" if new is not None else "/dev/null")
    output = difflib.unified_diff(lines(old), lines(new), *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in output)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the package folder of an image with one package `engine`, and redirect the record."""
    folder = tmp_path / "site"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(image_build, "RECORD", tmp_path / "etc" / "derived.json")
    return folder


def write(folder: Path, text: str | None) -> Path:
    path = folder / "engine" / "part.py"
    if text is not None:
        path.write_text(text)
    return path


# name -> (file before the patch, file after it)
PAIRS: dict[str, tuple[str | None, str | None]] = {
    "one line": (TEXT, changed((14, 15, ["changed\n"]))),
    "first line": (TEXT, changed((0, 1, ["changed\n"]))),
    "last line": (TEXT, changed((29, 30, ["changed\n"]))),
    "before the first": (TEXT, changed((0, 0, ["new\n"]))),
    "after the last": (TEXT, changed((30, 30, ["new\n"]))),
    "only deletions": (TEXT, changed((10, 14, []))),
    "three places": (TEXT, changed((3, 4, ["x\n", "y\n"]), (14, 15, []), (25, 25, ["z\n"]))),
    "a line that looks like a header": (TEXT, changed((14, 15, ["-- b/engine\n", "++ a/engine\n", "@@ -1 +1 @@\n"]))),
    "no line break at the end": (TEXT, TEXT[:-1]),
    "a line break at the end": (TEXT[:-1], TEXT),
    "a form feed inside a line": (TEXT, changed((14, 15, ["form\x0cfeed\n"]))),
    "a new file": (None, "one\ntwo\n"),
    "a deleted file": ("one\ntwo\n", None),
}


@pytest.mark.skipif(not shutil.which("git"), reason="git, whose result is the expected one, is not installed")
@pytest.mark.parametrize("name", PAIRS)
def test_a_patch_has_the_result_of_git_apply(name: str, packages: Path, tmp_path: Path) -> None:
    old, new = PAIRS[name]
    if old is not None and new is not None and "\x0c" in old + new:
        old, new = old.replace("\x0c", " "), new.replace("\x0c", "_")  # difflib would split there
    path = write(packages, old)
    file = tmp_path / "01-it.patch"
    file.write_text(f"Why it is here.\n\n{diff(old, new)}")
    reference = tmp_path / "reference"
    (reference / "engine").mkdir(parents=True)
    write(reference, old)
    subprocess.run(["git", "apply", str(file)], cwd=reference, check=True)
    expected = (reference / "engine" / "part.py").read_text() if new is not None else None

    assert image_build.patch(str(file)) == {"01-it.patch": "applied"}
    assert (path.read_text() if path.exists() else None) == expected == new
    assert image_build.patch(str(file)) == {"01-it.patch": "already there"}
    assert (path.read_text() if path.exists() else None) == new


def test_a_hunk_applies_to_moved_lines(packages: Path, tmp_path: Path) -> None:
    file = tmp_path / "it.patch"
    file.write_text(diff(TEXT, changed((14, 15, ["changed\n"]), (25, 26, ["changed too\n"]))))
    path = write(packages, "new\n" * 7 + TEXT)
    assert image_build.patch(str(file)) == {"it.patch": "applied"}
    assert path.read_text() == "new\n" * 7 + changed((14, 15, ["changed\n"]), (25, 26, ["changed too\n"]))


def test_line_endings_are_kept(packages: Path, tmp_path: Path) -> None:
    path = packages / "engine" / "part.py"
    path.write_bytes(b"one\r\ntwo\r\nthree\r\nfour\r\n")
    file = tmp_path / "it.patch"
    file.write_bytes(b"--- a/engine/part.py\n+++ b/engine/part.py\n@@ -1,3 +1,3 @@\n one\r\n-two\r\n+TWO\r\n three\r\n")
    assert image_build.patch(str(file)) == {"it.patch": "applied"}
    assert path.read_bytes() == b"one\r\nTWO\r\nthree\r\nfour\r\n"


def test_bytecode_of_the_old_source_is_deleted(packages: Path, tmp_path: Path) -> None:
    write(packages, TEXT)
    cache = packages / "engine" / "__pycache__"
    cache.mkdir()
    for name in ("part.cpython-312.pyc", "other.cpython-312.pyc"):
        (cache / name).write_bytes(b"")
    file = tmp_path / "it.patch"
    file.write_text(diff(TEXT, changed((14, 15, ["changed\n"]))))
    image_build.patch(str(file))
    assert [path.name for path in cache.iterdir()] == ["other.cpython-312.pyc"]


GOOD = diff(TEXT, changed((3, 4, ["x\n"]), (20, 21, ["y\n"])))
HEAD = "--- a/engine/part.py\n+++ b/engine/part.py\n"

# name -> (patch, file in the image, part of the message)
REFUSED = {
    "second hunk": (
        GOOD,
        TEXT.replace("line 21\n", "else\n"),
        "it.patch does not apply: engine/part.py, hunk 2 (line 18)",
    ),
    "half of it applied": (GOOD, TEXT.replace("line 4\n", "x\n"), "engine/part.py, hunk 1 (line 1)"),
    "file missing": (GOOD, None, "engine/part.py is not in the image"),
    "new file exists": (diff(None, "one\n"), "two\n", "engine/part.py exists already"),
    "other package": (GOOD.replace("/engine/", "/no_such/"), TEXT, "the image has no package no_such"),
    "no package": (GOOD.replace("/engine/", "/"), TEXT, "part.py is not in a package"),
    "outside": (GOOD.replace("/engine/", "/engine/../../"), TEXT, "is not in a package"),
    "no context": (f"{HEAD}@@ -4 +4 @@\n-line 4\n+x\n", TEXT, "hunk 1 has no context"),
    "truncated": (f"{HEAD}@@ -1,9 +1,9 @@\n line 1\n", TEXT, "hunk 1 ends before its 9 old and 9 new lines"),
    "binary": (f"{HEAD}GIT binary patch\n", TEXT, "only changes of text"),
    "rename": ("rename from a\nrename to b\n", TEXT, "only changes of text"),
    "no diff": ("just text\n", TEXT, "it.patch is not a unified diff"),
    "kept lines": (diff("one\n", None), "one\ntwo\n", "engine/part.py, hunk 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_patch_that_does_not_apply_changes_nothing(name: str, packages: Path, tmp_path: Path) -> None:
    text, current, message = REFUSED[name]
    path = write(packages, current)
    file = tmp_path / "it.patch"
    file.write_text(text)
    with pytest.raises(StepError) as refused:
        image_build.patch(str(file))
    assert message in str(refused.value)
    assert (path.read_text() if path.exists() else None) == current


def test_patches_of_one_file_apply_in_order(packages: Path, tmp_path: Path) -> None:
    path = write(packages, TEXT)
    middle = changed((3, 4, ["x\n"]))
    (tmp_path / "1.patch").write_text(diff(TEXT, middle))
    (tmp_path / "2.patch").write_text(diff(middle, middle.replace("x\n", "y\n")))
    files = [str(tmp_path / name) for name in ("1.patch", "2.patch")]
    assert image_build.patch(*files) == {"1.patch": "applied", "2.patch": "applied"}
    assert path.read_text() == changed((3, 4, ["y\n"]))


def test_steps_are_recorded_and_a_refusal_is_one_line(
    packages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(packages, TEXT)
    file = tmp_path / "01-it.patch"
    file.write_text(GOOD)
    assert image_build.main(["patch", str(file)]) == 0
    assert json.loads(image_build.RECORD.read_text()) == {"patch": {"01-it.patch": "applied"}}
    file.write_text("just text\n")
    assert image_build.main(["patch", str(file)]) == 1
    assert capsys.readouterr().err == "vllm-spark refuses: 01-it.patch is not a unified diff\n"
    assert image_build.main(["patch"]) == 2
    assert image_build.main(["nonsense", "x"]) == 2


def archive(path: Path, files: dict[str, str]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return str(path)


def test_an_overlay_copies_only_sources_of_its_folder(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_build, "ENGINE", "engine")
    write(packages, TEXT)
    (packages / "engine" / "_C.so").write_text("compiled")
    file = archive(
        tmp_path / "o.tar.gz",
        {
            "src-1/engine/part.py": "new\n",
            "src-1/engine/deep/more.py": "more\n",
            "src-1/engine/_C.so": "other\n",
            "src-1/setup.py": "no\n",
            "src-1/engine/../../../escape.py": "no\n",
        },
    )
    assert image_build.overlay(file, "src-1/engine") == {"folder": "src-1/engine", "files": 2}
    files = {str(path.relative_to(packages)): path.read_text() for path in packages.rglob("*") if path.is_file()}
    assert files == {
        "engine/__init__.py": "",
        "engine/_C.so": "compiled",
        "engine/part.py": "new\n",
        "engine/deep/more.py": "more\n",
    }
    assert not (tmp_path / "escape.py").exists()


@pytest.mark.parametrize(("engine", "message"), [("engine", "no *.py in src-2"), ("no_such", "has no package no_such")])
@pytest.mark.usefixtures("packages")
def test_an_overlay_without_sources_is_refused(
    engine: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_build, "ENGINE", engine)
    file = archive(tmp_path / "o.tar.gz", {"src-1/engine/part.py": "x\n"})
    with pytest.raises(StepError) as refused:
        image_build.overlay(file, "src-2")
    assert message in str(refused.value)


def test_packages_without_a_pin_keep_their_version() -> None:
    present = {"torch": "2.13.0+cpu", "transformers": "5.15.0", "typing-extensions": "4.16.0"}
    pins = ["Transformers==5.14.1", "ray[cgraph]==2.55.1"]
    assert image_build.constraints(present, pins) == ["torch==2.13.0+cpu", "typing-extensions==4.16.0"]


def test_installed_lists_the_packages_of_this_python() -> None:
    assert image_build.installed()["pyyaml"]


ANY = "py3-none-any"
SHELF = {
    f"wish-1-{ANY}": "needed\nlacking",
    f"wish-2-{ANY}": "needed>=2",
    f"needed-1-{ANY}": "",
    f"needed-2-{ANY}": "",
    f"lacking-1-{ANY}": "",
}
OWN = ".".join(map(str, sys.version_info[:2]))
NO_HASH = f"wish==1 --hash=sha256:{'0' * 64}"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A Python whose packages are those of a base image: pip and needed==1."""
    folder = tmp_path / "base"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    # An installation of pip takes ten times as long as the test.
    (site / "pip").symlink_to(Path(pip.__file__).parent)
    wheel = wheel_index.SHELF["wheel"](tmp_path, "needed", "1")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)  # noqa: S202  written above
    return folder / "bin" / "python"


def added(base: Path, folder: Path, pins: list[str], lines: list[str], python: str = OWN) -> tuple[str, str]:
    """Return what a step adds to the base, as JSON, and the refusal; one of them is empty."""
    environment = wheel_index.write(folder, SHELF)
    known = {line.partition(" ")[0]: line for line in (wheel_index.line(folder, file) for file in SHELF)}
    (folder / "pins.txt").write_text("\n".join(pins) + "\n")
    (folder / "wheels.txt").write_text("".join(f"{known.get(line, line)}\n" for line in lines))
    program = "import image_build, json, sys\ntry:\n    print(json.dumps(image_build.install(*sys.argv[1:])))\n"
    program += "except image_build.StepError as error:\n    sys.exit(str(error))\n"
    argv = [str(base), "-c", program, str(folder / "pins.txt"), str(folder / "wheels.txt"), python]
    environment |= {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(image_build.__file__).parent)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()[-1]
    return ("", said) if done.returncode else (done.stdout.strip().splitlines()[-1], "")


# name -> (pins, lines of wheels, what is added)
ADDED: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "what the base lacks": (
        ["wish==1"], ["lacking==1", "needed==2", "wish==1"], {"wish": "1", "lacking": "1"},
    ),
    "what a pin names": (["wish==2", "needed==2"], ["needed==2", "wish==2"], {"wish": "2", "needed": "2"}),
    "what is there": (["needed==1"], ["needed==1"], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ADDED)
def test_packages_are_added_and_those_of_the_base_stay(name: str, base: Path, tmp_path: Path) -> None:
    pins, lines, expected = ADDED[name]
    done, refused = added(base, tmp_path / "shelf", pins, lines)
    assert (json.loads(done or "{}"), refused) == (expected, "")


# name -> (pins, lines of wheels, a part of the refusal)
NOT_ADDED = {
    "another checksum": (["wish==1"], ["lacking==1", NO_HASH], "another wheel of wish==1 (above)"),
    "no such release": (["wish==9"], [f"wish==9 --hash=sha256:{'0' * 64}"], "pip cannot download wish==9"),
    "another version of the base's": (
        ["wish==2"],
        ["needed==2", "wish==2"],
        "pip cannot add wish==2 (above): they need",
    ),
    "a wheel too few": (["wish==1"], ["needed==2", "wish==1"], "or one that is not among their wheels"),
}


@pytest.mark.parametrize("name", NOT_ADDED)
def test_a_failure_of_pip_is_refused_and_adds_nothing(name: str, base: Path, tmp_path: Path) -> None:
    pins, lines, reason = NOT_ADDED[name]
    before = sorted(path.name for path in base.parent.parent.rglob("*.dist-info"))
    done, refused = added(base, tmp_path / "shelf", pins, lines)
    assert (done, reason in refused) == ("", True), refused
    assert sorted(path.name for path in base.parent.parent.rglob("*.dist-info")) == before


def test_wheels_for_another_python_are_refused(tmp_path: Path) -> None:
    done, refused = added(Path(sys.executable), tmp_path / "shelf", ["wish==1"], ["wish==1"], "3.4")
    assert (done, refused) == ("", f"the wheels are for Python 3.4, and the base image has {OWN} (image.derive.python)")


def test_the_program_needs_only_the_standard_library() -> None:
    """It runs in images without vllm_spark."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(Path(image_build.__file__)), "nonsense", "x"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
