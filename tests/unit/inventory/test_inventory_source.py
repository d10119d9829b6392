"""An inventory that Ansible cannot read: what is wrong, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vllm_spark.core import paths
from vllm_spark.inventory import source

HOSTS = "sparks: {hosts: {spark1: {}}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with two inventories, and the working directory in it."""
    for name in ("minimal", "sample"):
        (tmp_path / "inventories" / name).mkdir(parents=True)
        (tmp_path / "inventories" / name / "hosts.yml").write_text(HOSTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "FOLDER", tmp_path / "inventories")
    for name in ("MINIMAL", "SITE"):
        monkeypatch.setattr(source, name, tmp_path / "inventories" / name.lower())
    return tmp_path


@pytest.mark.parametrize(
    ("path", "site", "expected", "fix"),
    [
        # The toolkit's own samples are none of the inventories that an owner may mean.
        ("nope", False, "a folder with hosts.yml", "vllm-spark init. It writes inventories/site."),
        ("nope", True, "a folder with hosts.yml", "use `-i inventories/site`."),
        ("inventories/sampel", False, "inventories/sample", "use `-i inventories/sample`."),
        ("inventories/sampel/hosts.yml", False, "a folder with hosts.yml", "vllm-spark init."),
    ],
)
def test_an_inventory_that_does_not_exist(folder: Path, path: str, site: bool, expected: str, fix: str) -> None:
    if site:
        (folder / "inventories" / "site").mkdir()
        (folder / "inventories" / "site" / "hosts.yml").write_text(HOSTS)
    said = str(source.missing(folder / path))
    here = folder / path
    assert said.startswith(f"there is no inventory at {here} — expected: {expected}. Fix: {fix}")


@pytest.mark.parametrize(
    ("names", "has"),
    [
        (["group_vars/all.yml"], "group_vars"),
        (["lock.yml", "host_vars/a.yml", ".git"], ".git, host_vars, lock.yml"),
        ([], "nothing"),
    ],
)
def test_a_folder_that_names_no_host(folder: Path, names: list[str], has: str) -> None:
    (folder / "site").mkdir()
    for name in names:
        (folder / "site" / name).parent.mkdir(exist_ok=True)
        (folder / "site" / name).touch()
    refusal = source.without_hosts(folder / "site")
    assert refusal is not None
    assert str(refusal).startswith(f"site names no host, it has {has} — expected: hosts.yml there")
    assert refusal.command == "vllm-spark init --to site"


@pytest.mark.parametrize("name", ["hosts.yml", "hosts", "hosts.ini", "more/hosts.yml"])
def test_a_folder_with_a_source_is_left_to_ansible(folder: Path, name: str) -> None:
    (folder / "site" / name).parent.mkdir(parents=True)
    (folder / "site" / name).write_text(HOSTS)
    assert source.without_hosts(folder / "site") is None
    assert source.without_hosts(folder / "site" / name) is None
    assert source.without_hosts(folder / "absent") is None


def test_elsewhere_the_paths_are_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "desk").mkdir()
    monkeypatch.chdir(folder / "desk")
    said = str(source.missing(Path("nope")))
    assert f"Fix: vllm-spark init. It writes {folder}/inventories/site." in said


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("hosts.yml", "sparks:\n  hosts:\n    a: {x: [}\n", "site/hosts.yml:3:13: not YAML, "),
        ("hosts.yml", "\tsparks: {}\n", "site/hosts.yml:1:1: not YAML, "),
        ("hosts.yml", "", "site/hosts.yml: it is empty"),
        ("hosts.yml", "- spark1\n", "site/hosts.yml: not a map of groups"),
        ("group_vars/all.yml", "a: [1\nb: 2\n", "site/group_vars/all.yml:2:2: not YAML, "),
        ("group_vars/all/vllm.yml", "a: 'x\n", "site/group_vars/all/vllm.yml:2:1: not YAML, "),
        ("host_vars/spark1", "a: b: c\n", "site/host_vars/spark1:1:5: not YAML, "),
    ],
)
def test_a_file_that_is_not_yaml_has_its_line(folder: Path, file: str, content: str, expected: str) -> None:
    site = folder / "site"
    (site / file).parent.mkdir(parents=True)
    (site / "hosts.yml").write_text(HOSTS)
    (site / file).write_text(content)
    refusal = source.unreadable(site / "hosts.yml")
    assert refusal is not None
    assert refusal.what.startswith(expected)
    assert refusal.fix.startswith(f"correct site/{file}")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("group_vars/all.yml", "$ANSIBLE_VAULT;1.1;AES256\n3132\n"),
        ("group_vars/all.yml", "a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  31\nb: !unsafe '{{ x }}'\n"),
        ("group_vars/all.yml", ""),
        ("group_vars/notes.txt", "a: [1\n"),
        ("hosts.yml", "plugin: other\n"),
        ("hosts.yml", "$ANSIBLE_VAULT;1.1;AES256\n3132\n"),
    ],
)
def test_what_ansible_reads_is_left_to_it(folder: Path, file: str, content: str) -> None:
    (folder / "site" / file).parent.mkdir(parents=True)
    (folder / "site" / "hosts.yml").write_text(HOSTS)
    (folder / "site" / file).write_text(content)
    assert source.unreadable(folder / "site" / "hosts.yml") is None


def test_other_kinds_of_inventory_are_left_to_ansible(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text("[sparks]\nspark1\n")
    assert source.unreadable(tmp_path / "hosts.ini") is None


def test_the_inventories_of_the_clone_can_be_read() -> None:
    files = sorted((paths.ROOT / "inventories").glob("*/hosts.yml"))
    assert len(files) >= 4
    assert [source.unreadable(file) for file in files] == [None] * len(files)


def test_no_role_judges_the_deployments_before_their_own_checks() -> None:
    """Ansible's message about a wrong type names an internal variable."""
    options = {
        f"{file.parts[-3]}: {name}": option["type"]
        for file in (paths.ROOT / "roles").glob("*/meta/argument_specs.yml")
        for spec in yaml.load(file.read_text(), yaml.CSafeLoader)["argument_specs"].values()
        for name, option in (spec.get("options") or {}).items()
        if name.endswith("_deployments")
    }
    assert len(options) >= 7
    assert {name: type_ for name, type_ in options.items() if type_ != "raw"} == {}
