"""The inventory that init writes: the shape of inventories/minimal, and nothing written over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import new_file

HOST = {"ansible_host": "spark-1a2b.local", "ansible_user": "nvidia"}
SERVER = {"name": "qwen", "recipe": "qwen3.6-35b-a3b-nvfp4-mtp", "hosts": ["spark1"]}


def test_it_has_the_shape_of_minimal() -> None:
    minimal = yaml.load((paths.ROOT / "inventories" / "minimal" / "hosts.yml").read_text(), yaml.CSafeLoader)
    assert yaml.load(new_file.text({"spark1": HOST}, [SERVER]), yaml.CSafeLoader) == minimal


def test_users_that_differ_stand_with_their_sparks() -> None:
    hosts = {"spark1": HOST, "spark2": {"ansible_host": "gx10-3c4d.local", "ansible_user": "grace"}}
    written = yaml.load(new_file.text(hosts, []), yaml.CSafeLoader)["sparks"]
    assert written == {"hosts": hosts, "vars": {"vllm_deployments": []}}


def test_a_deployment_that_the_toolkit_would_refuse_is_not_written() -> None:
    with pytest.raises(RefusedError, match="Bad Name"):
        new_file.text({"spark1": HOST}, [{**SERVER, "name": "Bad Name"}])


@pytest.mark.parametrize("name", ["hosts.yml", "hosts", "spark.ini"])
def test_a_folder_with_an_inventory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(RefusedError, match=f"{name} exists .* Fix: vllm-spark plan -i {tmp_path}"):
        new_file.refuse_existing(tmp_path)


def test_what_the_toolkit_keeps_beside_an_inventory_is_none(tmp_path: Path) -> None:
    (tmp_path / "lock.yml").write_text("")
    (tmp_path / "recipes").mkdir()
    new_file.refuse_existing(tmp_path)
    new_file.refuse_existing(tmp_path / "none")


def test_a_file_that_came_meanwhile_stays(tmp_path: Path) -> None:
    (tmp_path / new_file.NAME).write_text("mine")
    with pytest.raises(RefusedError, match="exists"):
        new_file.write(tmp_path, "other")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(new_file.NAME, "mine")]


def test_an_interruption_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "link", interrupted)
    with pytest.raises(KeyboardInterrupt):
        new_file.write(tmp_path / "site", "text")
    assert list((tmp_path / "site").iterdir()) == []


def test_others_may_read_it(tmp_path: Path) -> None:
    file = new_file.write(tmp_path / "inventories" / "site", "text")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("text", 0o644)
