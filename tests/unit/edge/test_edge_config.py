"""Both configurations as a whole: the files of tests/data/edge, which tests/edge judges by HAProxy."""

from __future__ import annotations

import json
import os
import re

import pytest

from fakes import edge_cases
from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.units import MIB
from vllm_spark.edge import answers, config
from vllm_spark.inventory import edge
from vllm_spark.inventory.host_edge import Edge

FOLDER = DATA / "edge"


@pytest.mark.parametrize("name", edge_cases.GOLDEN)
def test_the_configuration_is_the_golden_file(name: str) -> None:
    deployments, settings, address = edge_cases.GOLDEN[name]
    planned = edge_cases.edge_of(deployments, settings)
    for file, text in ((name, config.config(planned, address)), (f"{name}.route", config.route(planned))):
        if "UPDATE_GOLDEN" in os.environ:
            (FOLDER / f"{file}.cfg").write_text(text, encoding="utf-8")
        assert text == (FOLDER / f"{file}.cfg").read_text(encoding="utf-8")


def test_every_golden_file_has_its_case() -> None:
    names = [file.stem for file in FOLDER.glob("*.cfg")]
    assert sorted(names) == sorted([*edge_cases.GOLDEN, *(f"{name}.route" for name in edge_cases.GOLDEN)])


def test_an_open_edge_has_no_backends_and_a_closed_one_those_of_its_head() -> None:
    deployments = [edge_cases.DEMO, edge_cases.OTHER, edge_cases.LONE_WORKER]
    assert edge_cases.edge_of(deployments, {"open": True}).backends == ()
    closed = edge_cases.edge_of(deployments, {"open": False})
    assert [(one.deployment, one.models, one.sequences) for one in closed.backends] == [
        ("demo", ("model",), None),
        ("other", ("other-model", "o/1"), 4),
    ]
    assert Edge.from_json(json.loads(json.dumps(closed.to_json()))) == closed


def test_a_listener_for_all_addresses_covers_the_others_of_its_port() -> None:
    binds = [("0.0.0.0", 8000), ("192.168.1.20", 8000), ("192.168.1.20", 8001), ("192.168.1.20", 8001)]  # noqa: S104
    deployments = [
        {**edge_cases.DEMO, "name": f"d{number}", "active": not number, "bind": bind, "port": port}
        for number, (bind, port) in enumerate(binds)
    ]
    own = edge_cases.edge_of(deployments, {"open": False})
    assert config.listeners(own) == ["0.0.0.0:8000", "192.168.1.20:8001"]


@pytest.mark.parametrize("name", edge_cases.GOLDEN)
def test_strangers_fill_less_than_64_mib_of_the_first_stage(name: str) -> None:
    """A connection may fill a buffer for each direction, and TLS has some 50 KiB. The second stage is on no network."""
    deployments, settings, address = edge_cases.GOLDEN[name]
    planned = edge_cases.edge_of(deployments, settings)
    text = config.config(planned, address)
    (buffer,) = map(int, re.findall(r"tune.bufsize (\d+)", text))
    (strangers,) = map(int, re.findall(r"fe_conn,sub\(sess.known\) gt (\d+)", text))
    assert buffer >= 1024 * planned.settings.limits.header_kib + 4096
    assert strangers * (2 * buffer + 50 * 1024) < 64 * MIB
    assert set(re.findall(r"^ +bind (\w+)", config.route(planned), re.MULTILINE)) == {"unix"}


@pytest.mark.parametrize(
    ("address", "more"),
    [
        ("192.168.1.20", {"192.168.1.20"}),
        ("spark-1a2b", {"spark-1a2b", "spark-1a2b.local"}),
        ("Spark.Home.Lan", {"spark.home.lan"}),
        ("fd00::2", {"fd00::2"}),
    ],
)
def test_clients_may_use_every_name_of_the_inventory(address: str, more: set[str]) -> None:
    own = edge_cases.edge_of([edge_cases.DEMO], {"open": False, "names": ["models.home"]})
    always = {"spark1", "spark1.local", "localhost", "127.0.0.1", "models.home"}
    assert set(config.names(own, address)) == always | more


@pytest.mark.parametrize("address", ["192.168.1.20\n", "M#N", "a b", ""])
def test_an_address_that_haproxy_would_read_otherwise_is_refused(address: str) -> None:
    own = edge_cases.edge_of([edge_cases.DEMO], {"open": False})
    with pytest.raises(RefusedError, match="ansible_host of spark1 is"):
        config.config(own, address)


def test_the_answers_of_an_installed_toolkit_name_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "IS_INSTALLED", True)
    texts = answers.arguments(edge.OPEN)
    assert "vllm-spark switch -e to=%[var(txn.of)]" in texts["inactive"]
    assert not any("ansible-playbook" in text for text in texts.values())


def test_every_answer_of_the_edge_is_a_word_of_haproxy() -> None:
    texts = [*answers.arguments(edge.OPEN).values(), *(text for _, text in answers.own_errors()), answers.HEALTHY]
    assert all(text.count("'") == 2 and "\n" not in text and "#" not in text for text in texts)
    assert all("%" not in text.replace("%[", "") for text in texts)
