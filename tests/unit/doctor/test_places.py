"""The names of a site in the fixes of the doctor."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import printed
from fakes import failing_pair
from fakes.fake_ansible import FakeRun
from vllm_spark.cli import main
from vllm_spark.doctor import command
from vllm_spark.doctor.places import NOWHERE, Place

SOLO = Place("spark1", "tiny", ("spark1",), "vllm/vllm-openai@sha256:1", "ada@10.0.0.1")
PAIR = Place("spark2", "big", ("spark1", "spark2"), "registry:5000/x/y@sha256:2", "spark2.local")
OWN = Place("spark1", "tiny", local=True)
TEXTS = [
    (SOLO, "`ansible-playbook deploy.yml -l HOST`", "`ansible-playbook deploy.yml -l spark1`"),
    (PAIR, "`ansible-playbook deploy.yml -l HOST`", "`ansible-playbook deploy.yml -l spark1,spark2`"),
    (PAIR, "`ansible-playbook stop.yml -l HEAD,WORKER`", "`ansible-playbook stop.yml -l spark1,spark2`"),
    (OWN, "`ansible-playbook stop.yml -l HEAD,WORKER`", "`ansible-playbook stop.yml -l spark1`"),
    (SOLO, "vllm@NAME, /etc/vllm-spark/NAME/launch, -e to=NAME", "vllm@tiny, /etc/vllm-spark/tiny/launch, -e to=tiny"),
    (PAIR, "CONTAINER of IMAGE from REGISTRY", "vllm-big of registry:5000/x/y@sha256:2 from registry:5000"),
    (SOLO, "`sudo docker login REGISTRY`", "`sudo docker login docker.io`"),
    (SOLO, "`ssh -t USER@ADDRESS sudo id`", "`ssh -t ada@10.0.0.1 sudo id`"),
    (OWN, "`ssh USER@ADDRESS journalctl -u vllm@NAME | x`", "`journalctl -u vllm@tiny | x`"),
    # Other words, and what is not known.
    (SOLO, "VLLM_HOST_IP, HOSTS, -e NAME=VALUE", "VLLM_HOST_IP, HOSTS, -e NAME=VALUE"),
    (OWN, "IMAGE from REGISTRY", "IMAGE from REGISTRY"),
    (NOWHERE, "`deploy.yml -l HOST`, vllm@NAME, USER@ADDRESS", "`deploy.yml -l HOST`, vllm@NAME, USER@ADDRESS"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "text", "filled"), TEXTS)
def test_a_known_word_is_filled(place: Place, text: str, filled: str) -> None:
    assert place.fill(text) == filled


def test_a_place_has_the_login_of_the_inventory() -> None:
    variables = {"ansible_host": "10.0.0.2", "ansible_user": "ada", "ansible_port": 2222}
    assert Place.of_host("spark1", variables).fill("USER@ADDRESS") == "-p 2222 ada@10.0.0.2"
    local = Place.of_host("spark1", {"ansible_connection": "local"})
    assert local.fill("`ssh USER@ADDRESS journalctl`") == "`journalctl`"


def collected(folder: Path, hosts: Sequence[str] = failing_pair.HOSTS, **changes: Any) -> tuple[str, list[Path]]:
    """Return what `collect` prints of the pair, and its bundles."""
    lines, bundles = [], []
    for host in hosts:
        variables = failing_pair.variables()
        run = FakeRun(host, variables, {"vllm_collect_logs": failing_pair.collected(host)})
        args = {"deployments": variables[host]["vllm_deployments"], "report_dir": str(folder), **changes}
        bundles.append(Path(run.act("vllm_collect", phase="host", **args)["bundle"]))
        lines += run.lines
    return "\n".join(lines), bundles


def test_a_collect_of_a_pair_has_no_placeholder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, bundles = collected(tmp_path)
    assert len(printed.commands(text)) > 10
    assert list(printed.unfilled(text)) == []
    for name in ("-l spark1,spark2", "vllm@pair-ray", "vllm-pair-ray", "ada@spark1.local", "ada@spark2.local"):
        assert name in text
    with tarfile.open(bundles[0]) as archive:
        for name in ("FINDINGS.txt", "findings.json"):
            member = archive.extractfile(name)
            assert member
            assert list(printed.unfilled(member.read().decode())) == []
    assert main.main(["doctor", *map(str, bundles)]) == 1
    assert list(printed.unfilled(capsys.readouterr().out)) == []
    assert main.main(["doctor", "--json", *map(str, bundles)]) == 1
    fixes = [finding["fix"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert fixes
    assert list(printed.unfilled("\n".join(fixes))) == []


def test_a_spark_without_an_inventory_is_named_alone(tmp_path: Path) -> None:
    """`collect` checks no inventory: whatever vllm_deployments is, the Spark and its deployment are known."""
    for deployments in ([], "text", [1, {"hosts": 5}, {"name": "other", "hosts": ["spark9"]}]):
        text, _ = collected(tmp_path, ["spark1"], deployments=deployments)
        assert "deploy.yml -l spark1`" in text
        assert list(printed.unfilled(text)) == []


def test_a_loose_log_keeps_the_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engine.log"
    file.write_text("\n".join(failing_pair.JOURNALS["spark1"]))
    assert main.main(["doctor", str(file)]) == 1
    assert "-l HEAD,WORKER" in capsys.readouterr().out


OTHERS = ["", "{}", "[]", '{"places": 5}', '{"places": {"a": 1}}', '{"places": {"a": {"x": 1}}}']


@pytest.mark.parametrize("manifest", OTHERS)
def test_the_manifest_of_another_toolkit(manifest: str) -> None:
    assert command.place_of("deployments/a/journal.log", command.places_of(manifest)) == NOWHERE
