"""The neighbours that lldpd hears, from what lldpcli prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_fabric, spark_lldp

from fakes.recorded_hosts import record, recorded
from project_files import DATA

CASES = yaml.safe_load((DATA / "lldp.yml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["source"])
def test_what_lldpcli_prints(case: dict[str, Any]) -> None:
    heard = spark_lldp.neighbours(case["output"])
    assert heard is not None
    assert [list(one.values()) for one in heard] == case["heard"]


@pytest.mark.parametrize("output", ["", "[WARN/control] unable to connect to socket", "[]", '{"error": 1}'])
def test_without_a_document_nothing_is_known(output: str) -> None:
    assert spark_lldp.neighbours(output) is None


def test_the_collector_has_the_neighbours_of_the_fabric_alone_and_the_mac_of_a_netdev(tmp_path: Path) -> None:
    record(tmp_path, recorded("one-cable"))
    lan = '{"enP7s7": {"chassis": {"office": {"id": {"type": "mac", "value": "00:00:00:00:00:09"}}}}}'
    fabric = CASES[0]["output"].replace("ens1", "enp1s0f1np1").removeprefix('{"lldp": {"interface": ').strip()[:-2]
    (tmp_path / "lldp.json").write_text(f'{{"lldp": {{"interface": [{lan}, {fabric}]}}}}')
    (tmp_path / "sys/class/net/enp1s0f1np1/address").write_text("3c:6d:66:cc:b3:b7\n")
    facts = spark_fabric.fabric(str(tmp_path))
    assert [one["name"] for one in facts["neighbours"] or []] == ["my-pc"]
    assert {entry["name"]: entry["mac"] for entry in facts["netdevs"]}["enp1s0f1np1"] == "3c:6d:66:cc:b3:b7"
