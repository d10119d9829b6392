"""The edge on a host beside other verbs: remove takes its account and its unit, and a rollback brings it along."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_holdings
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandResult

from fakes.installed_states import holdings
from vllm_spark.lifecycle import remove
from vllm_spark.lifecycle.remove import RemoveRequest


def test_the_folder_of_the_edge_is_no_deployment(tmp_path: Path) -> None:
    for name in ("demo", "edge"):
        (tmp_path / "etc" / "vllm-spark" / name).mkdir(parents=True)
    assert list(spark_holdings.deployments(str(tmp_path), False)) == ["demo"]


def test_its_unit_its_link_and_its_account_are_found(tmp_path: Path) -> None:
    units = tmp_path / "etc" / "systemd" / "system"
    wants = units / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (units / "vllm-edge.service").write_text("# Written by vllm-spark\n")
    (wants / "vllm-edge.service").symlink_to("/etc/systemd/system/vllm-edge.service")
    (tmp_path / "etc" / "group").write_text("root:x:0:\nvllm-spark-edge:x:990:\n")
    own, others = spark_holdings.unit_files(str(tmp_path))
    assert own == [str(wants / "vllm-edge.service"), str(units / "vllm-edge.service")]
    assert others == []
    assert spark_holdings.accounts(str(tmp_path)) == ["vllm-spark-edge"]
    (tmp_path / "etc" / "group").write_text("root:x:0:\n")
    assert spark_holdings.accounts(str(tmp_path)) == []


def test_remove_takes_the_account_and_leaves_the_package() -> None:
    items, lines = remove.plan({**holdings(), "accounts": ["vllm-spark-edge"]}, RemoveRequest(everything=True))
    assert [item.name for item in items if item.kind == "account"] == ["vllm-spark-edge"]
    stays = "packages that deploys installed stay, as others may use them by now: sudo apt-get purge "
    assert f"{stays}haproxy" in lines
    recorded = ["haproxy", "liblua5.3-0", "nftables"]
    _, lines = remove.plan({**holdings(), "packages": recorded}, RemoveRequest(everything=True))
    assert f"{stays}haproxy liblua5.3-0 nftables" in lines
    items, lines = remove.plan(holdings(), RemoveRequest(everything=True))
    assert not [item for item in items if item.kind == "account"]
    assert not any("haproxy" in line for line in lines)


@pytest.mark.parametrize(
    ("closed", "argv"),
    [
        (True, ["systemctl", "enable", "--now", "--no-block", "vllm-edge.service"]),
        (False, ["systemctl", "disable", "--now", "vllm-edge.service"]),
    ],
)
def test_the_edge_follows_a_restored_launch(
    closed: bool, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(spark_edge, "run", lambda *words: ran.append(list(words)))
    monkeypatch.setattr(spark_edge, "UNIT_FILE", str(tmp_path / "vllm-edge.service"))
    spark_edge.follow(closed)
    assert ran == []
    (tmp_path / "vllm-edge.service").touch()
    spark_edge.follow(closed)
    assert ran == [argv]


def test_a_unit_that_is_only_wanted_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "vllm-edge.service loaded active running vLLM edge",
        "vllm-edge-switch.service not-found inactive dead vllm-edge-switch.service",
        "vllm@gone.service not-found active running vllm@gone.service",
    ]
    monkeypatch.setattr(spark_holdings, "run", lambda *_: CommandResult(0, "\n".join(lines)))
    assert spark_holdings.units() == {"vllm-edge.service": "active", "vllm@gone.service": "active"}
