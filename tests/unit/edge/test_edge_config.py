"""haproxy.cfg as a whole: the files of tests/data/edge, which tests/edge judges by HAProxy."""

from __future__ import annotations

import json
import os
import re

import pytest

from fakes import edge_cases
from project_files import DATA
from vllm_spark.core.units import MIB
from vllm_spark.edge import answers, config
from vllm_spark.inventory import edge
from vllm_spark.inventory.host_edge import Edge

FOLDER = DATA / "edge"


@pytest.mark.parametrize("name", edge_cases.GOLDEN)
def test_the_configuration_is_the_golden_file(name: str) -> None:
    deployments, settings, address = edge_cases.GOLDEN[name]
    text = config.config(edge_cases.edge_of(deployments, settings), address)
    if "UPDATE_GOLDEN" in os.environ:
        (FOLDER / f"{name}.cfg").write_text(text, encoding="utf-8")
    assert text == (FOLDER / f"{name}.cfg").read_text(encoding="utf-8")


def test_every_golden_file_has_its_case() -> None:
    assert {file.stem for file in FOLDER.glob("*.cfg")} == set(edge_cases.GOLDEN)


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


@pytest.mark.parametrize("body_mib", [1, 16, 64])
def test_a_stranger_fills_at_most_256_mib_of_buffers(body_mib: int) -> None:
    own = edge_cases.edge_of([edge_cases.DEMO], {"open": False, "limits": {"body_mib": body_mib}})
    text = config.config(own, "192.168.1.20")
    buffer, strangers = (
        int(re.findall(pattern, text)[0])
        for pattern in (r"tune.bufsize (\d+)", r"sc1_conn_cur gt (\d+) } { sc1_get_gpt0 0 }")
    )
    assert 3 <= strangers <= 128
    assert strangers * buffer <= 256 * MIB


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


def test_every_answer_of_the_edge_is_a_word_of_haproxy() -> None:
    texts = [*answers.arguments(edge.OPEN).values(), *(text for _, text in answers.own_errors()), answers.HEALTHY]
    assert all(text.count("'") == 2 and "\n" not in text and "#" not in text for text in texts)
    assert all("%" not in text.replace("%[", "") for text in texts)
