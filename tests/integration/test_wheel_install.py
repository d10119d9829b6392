"""The wheel and the sdist, installed by pip into an environment without the toolkit, and used from an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from clean_environment import TOOLKIT, Environment
from vllm_spark.core import paths

RECIPE = "qwen3.6-35b-a3b-nvfp4-mtp"
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
# Python writes it beside a module that it imports.
COMPILED = "__pycache__"
LEFT_OUT = (".*", "lab", "molecule", "sandbox", "tests", "reports", "collections", "*.egg-info", COMPILED)


def build(source: Path, kind: str, into: Path) -> Path:
    """Return the wheel or the sdist of a folder, made as pip makes it: by the backend, in that folder."""
    done = subprocess.run(
        (sys.executable, "-c", BUILD, f"build_{kind}", str(into)),
        cwd=source,
        capture_output=True,
        text=True,
        check=True,
    )
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree: a build writes into it."""
    folder = tmp_path_factory.mktemp("tree") / "source"
    return Path(shutil.copytree(paths.ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT)))


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, "wheel", tmp_path_factory.mktemp("dist"))


def test_the_sdist_makes_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", build(source, "sdist", tmp_path), "-C", folder], check=True)
    (unpacked,) = folder.iterdir()
    again = build(unpacked, "wheel", tmp_path)
    contents = [{one.filename: one.CRC for one in zipfile.ZipFile(file).infolist()} for file in (wheel, again)]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 1000


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("installed"))
    pip = ("-m", "pip", "--python", str(made.python), "install", "--no-deps", "--no-index", str(wheel))
    done = subprocess.run((sys.executable, *pip), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made.link(TOOLKIT)
    program = made.python.with_name("ansible-playbook")
    program.write_text(f"#!{made.python}\nfrom ansible.cli.playbook import main\nmain()\n")
    program.chmod(0o755)
    return made


def type_at(installed: Environment, folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Return exit status and output of vllm-spark, typed in a folder."""
    program = str(installed.python.with_name("vllm-spark"))
    status, output = installed.run(program, *words, folder=folder, **variables)
    return status, " ".join(output.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("recipes",), RECIPE),
        (("plan", RECIPE), "tok/s"),
        (("render", RECIPE), "docker run"),
        (("doctor", "log"), "no finding"),
    ],
)
def test_a_command_runs_in_an_empty_folder(
    words: tuple[str, ...], expected: str, installed: Environment, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("INFO: Application startup complete.\n")
    _, output = type_at(installed, tmp_path, *words)
    assert expected in output
    assert "Traceback" not in output


def test_a_verb_reads_and_writes_the_folder_of_the_site_alone(installed: Environment, tmp_path: Path) -> None:
    packages = installed.python.parents[1] / "lib"
    before = {file for file in packages.rglob("*") if COMPILED not in file.parts}
    status, output = type_at(installed, tmp_path, "key", "list")
    assert status != 0
    assert f"there is no inventory at {tmp_path}/inventories/site" in output
    assert "Fix: vllm-spark init. " in output
    (page,) = re.findall(r"See `vllm-spark (runbook [a-z-]+)`", output)
    status, output = type_at(installed, tmp_path, *page.split())
    assert (status, "## Symptom" in output) == (0, True)
    shutil.copytree(paths.ROOT / "inventories" / "minimal", tmp_path / "inventories" / "site")
    hosts = tmp_path / "inventories" / "site" / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("spark-1a2b.local", "127.0.0.1\n      ansible_port: 1"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder, variables in ((tmp_path, {}), (elsewhere, {"VLLM_SPARK_SITE": str(tmp_path)})):
        status, output = type_at(installed, folder, "key", "list", **variables)
        assert "spark1 no SSH connection to 127.0.0.1 port 1" in output
        # The toolkit's own lines: its ansible.cfg, with its callback, was found.
        assert "TASK [" not in output
        status, output = type_at(installed, folder, "report", **variables)
        assert f"no report in {tmp_path}/reports" in output
    # Ansible finds the collection without a setting.
    words = ("playbook", "-i", str(hosts.parent), "vllm_spark.toolkit.lock", "--check")
    status, output = installed.ansible(*words)
    assert status == 0, output
    assert f"recipe {RECIPE} pins image" in output
    assert {file for file in packages.rglob("*") if COMPILED not in file.parts} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["elsewhere", "inventories"]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.online
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_uv_installs_it_for_each_python_of_this_machine(version: str, wheel: Path, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}")
    # A shim of pyenv may name a Python that is not chosen here.
    if not python or subprocess.run((python, "-c", ""), capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version}")
    settings = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    subprocess.run(
        (sys.executable, "-m", "uv", "tool", "install", "--quiet", "--python", python, str(wheel)),
        env={**os.environ, **settings, "UV_PYTHON_DOWNLOADS": "never"},
        check=True,
    )
    desk = tmp_path / "desk"
    desk.mkdir()
    said = {}
    for words in (("recipes",), ("key", "list")):
        done = subprocess.run(
            (str(tmp_path / "bin" / "vllm-spark"), *words),
            cwd=desk,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        said[words] = done.stdout + done.stderr
    assert RECIPE in said["recipes",]
    assert f"there is no inventory at {desk}/inventories/site" in said["key", "list"]
