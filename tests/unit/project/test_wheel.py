"""The wheel, and what is copied to a Spark, have no file that no verb reads."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import grimp
import pytest
import yaml
from setuptools import Distribution

from vllm_spark.bench import deployment_run
from vllm_spark.cli import verbs
from vllm_spark.cli.bench.command import COMMANDS as OF_BENCH
from vllm_spark.cli.main import COMMANDS
from vllm_spark.cli.recipe.command import COMMANDS as OF_RECIPE
from vllm_spark.core import paths
from vllm_spark.deploy import files
from vllm_spark.transfer import jobs, plan

SOURCE = paths.ROOT / "src"
PROGRAM = re.compile(r'^(if __name__ == "__main__":|sys\.exit\()', re.MULTILINE)
# Packages whose modules register themselves: one reads them by pkgutil.
REGISTRIES = ("vllm_spark.verify.gates", "vllm_spark.deploy.checks")
# Type checkers read it.
MARKER = "py.typed"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of the wheel, as paths in the repository: what setuptools would copy."""
    here = Path.cwd()
    os.chdir(paths.ROOT)
    try:
        command = runpy.run_path("setup.py")["BuildWithCollection"]
        distribution = Distribution({"script_name": "setup.py", "cmdclass": {"build_py": command}})
        distribution.parse_config_files(["pyproject.toml"])
        # The clone may be read-only. The list of the files of an earlier build would also be read from there.
        distribution.get_command_obj("egg_info").egg_base = str(tmp_path_factory.mktemp("egg"))
        build = distribution.get_command_obj("build_py")
        build.ensure_finalized()
        data = {os.path.join(folder, name) for _, folder, _, names in build.data_files for name in names}
        return {file for _, _, file in build.find_all_modules()} | data
    finally:
        os.chdir(here)


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """The imports of every module, also those inside of functions."""
    return grimp.build_graph("vllm_spark", "vllm_spark_ansible", cache_dir=None)


def imported(file: Path) -> Iterator[str]:
    """Yield every name that a file imports, as a module or of one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(module: str) -> str:
    base = SOURCE.joinpath(*module.split("."))
    package = base / "__init__.py"
    return str((package if package.is_file() else base.with_suffix(".py")).relative_to(paths.ROOT))


def reached(graph: grimp.ImportGraph, roots: set[str]) -> set[str]:
    """Return the modules that the roots import, with the packages that they are in."""
    found = {module for root in roots for module in (root, *graph.find_upstream_modules(root))}
    return {".".join(parts[: i + 1]) for parts in (module.split(".") for module in found) for i in range(len(parts))}


@pytest.fixture(scope="module")
def roots(graph: grimp.ImportGraph) -> set[str]:
    """The modules that a verb begins with: commands, what plugins import, registries, and programs that another file of
    the product names."""
    product = [
        file
        for folder in ("src", "plugins", "roles", "playbooks", "templates")
        for file in (paths.ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yml", ".j2", ".service"}
    ]
    texts = {file: file.read_text(encoding="utf-8") for file in [*product, paths.ROOT / "Makefile"]}
    programs = {
        module
        for module in graph.modules
        if PROGRAM.search((paths.ROOT / file_of(module)).read_text(encoding="utf-8"))
        and any(
            re.search(rf"\b{module.rpartition('.')[2]}\b", text)
            for file, text in texts.items()
            if file != paths.ROOT / file_of(module)
        )
    }
    registered = {child for package in REGISTRIES for child in graph.find_children(package)}
    plugins = {name for file in (paths.ROOT / "plugins").rglob("*.py") for name in imported(file)}
    typed = [*COMMANDS.values(), *verbs.found().values(), *OF_BENCH.values(), *OF_RECIPE.values()]
    commands = {f"vllm_spark.{command.path}" for command in typed}
    transfers = {f"vllm_spark.node.pull.{job.module}" for job in jobs.JOBS.values()}
    return (programs | registered | plugins | commands | transfers) & graph.modules


def test_the_wheel_has_no_file_that_no_verb_reads(
    wheel: set[str], graph: grimp.ImportGraph, roots: set[str], tmp_path: Path
) -> None:
    program = [sys.executable, str(paths.ROOT / "tests" / "files_of_verbs.py"), str(tmp_path)]
    opened = json.loads(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    data = {file for file in opened if not file.endswith(".py") and "__pycache__" not in file}
    assert len(wheel) > 300
    assert "src/vllm_spark/sizing/hardware.yml" in wheel & data
    read = {file_of(module) for module in reached(graph, roots)} | data
    package = {file for file in wheel if file.startswith("src/") and not file.endswith(MARKER)}
    assert sorted(package - read) == []
    # What a verb reads is in the wheel.
    assert sorted(data - wheel) == []


def test_a_file_that_nobody_reads_is_named(graph: grimp.ImportGraph, roots: set[str]) -> None:
    """Without the command that imports it, a module would be one."""
    assert "vllm_spark.sizing.catalogue" in reached(graph, roots)
    assert "vllm_spark.sizing.catalogue" not in reached(graph, roots - {"vllm_spark.cli.recipes"})


# The toolkit and Ansible read each file of these folders, and Ansible these files.
READ_WHOLE = re.compile(
    r"recipes/([^/]+|(architectures|engines|families)/.+)|ansible\.cfg|galaxy\.yml|meta/runtime\.yml"
)


def by_name(file: str) -> str:
    """Return how another file names one of the collection. A role and an inventory have the name of their folder."""
    parts = Path(file).parts
    return parts[1] if parts[0] in {"roles", "inventories"} else Path(file).stem.rstrip("@")


def test_each_file_of_the_collection_in_the_wheel_is_named_by_another(wheel: set[str]) -> None:
    collection = {file for file in wheel if not file.startswith("src/")}
    assert len(collection) > 500
    texts = {file: (paths.ROOT / file).read_text(encoding="utf-8") for file in wheel}
    for file in sorted(file for file in collection if not READ_WHOLE.fullmatch(file)):
        name = by_name(file)
        others = (text for other, text in texts.items() if other != file and not other.startswith(f"roles/{name}/"))
        assert any(name in text and re.search(rf"\b{re.escape(name)}\b", text) for text in others), file


def test_the_collection_in_the_wheel_is_whole(wheel: set[str]) -> None:
    # A verb of the root imports the playbook of its name.
    assert {file.name for file in (paths.ROOT / "playbooks").glob("*.yml")} <= wheel
    for pattern in ("roles/*/*/**/*.yml", "plugins/**/*.py", "templates/*", "docs/runbooks/*"):
        files = {str(file.relative_to(paths.ROOT)) for file in paths.ROOT.glob(pattern) if file.is_file()}
        assert len(files) > 10
        assert files <= wheel


# What is copied -> the modules that are started on the host.
PULL = {"vllm_spark.node.pull.run", "vllm_spark.node.pull.hub_cache"}
BENCH = {f"vllm_spark.node.bench.{name}" for name in ("job", "rank_job", "start_job")}


def test_a_spark_gets_no_module_that_its_programs_do_not_import(graph: grimp.ImportGraph) -> None:
    pull = PULL | {f"vllm_spark.node.pull.{job.module}" for job in jobs.JOBS.values()}
    modules = {".".join(Path(name).with_suffix("").parts) for name in plan.programs() if name.endswith(".py")}
    assert {name.removesuffix(".__init__") for name in modules} == reached(graph, pull)
    modules = {".".join(Path(name).with_suffix("").parts) for name in deployment_run.programs() if name.endswith(".py")}
    assert {name.removesuffix(".__init__") for name in modules} == reached(graph, BENCH)
    modules = {
        name.removeprefix(f"{files.host_layout.SUPERVISOR_MODULES}/").removesuffix(".py").replace("/", ".")
        for name in (file.path for file in files.supervisor())
        if name.endswith(".py")
    }
    launcher = reached(graph, {"vllm_spark.node.supervise_launcher"}) - {"vllm_spark.node.supervise_launcher"}
    assert {name.removesuffix(".__init__") for name in modules} == launcher


def test_each_template_is_named_by_the_product() -> None:
    product = [
        file.read_text(encoding="utf-8")
        for folder in ("src", "plugins", "roles", "playbooks", "templates")
        for file in (paths.ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yml", ".j2", ".lua"}
    ]
    templates = [file.name for file in paths.TEMPLATES.iterdir() if file.is_file()]
    assert len(templates) > 1
    assert [name for name in templates if not any(name.removesuffix(".j2") in text for text in product)] == []


def test_the_collection_carries_neither_laboratory_nor_tests() -> None:
    ignored = yaml.load((paths.ROOT / "galaxy.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)["build_ignore"]
    left_out = {"lab", "tests", "molecule", "sandbox", "typings"}
    assert all((paths.ROOT / name).is_dir() for name in left_out)
    assert {name for name in left_out if not any(fnmatch(name, pattern) for pattern in ignored)} == set()
