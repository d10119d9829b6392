"""Names of hosts: a name that a shell could read does not reach a launch, although the inventory has that host."""

from __future__ import annotations

import pytest

from vllm_spark.inventory import placement
from vllm_spark.inventory.deployment import Deployment


def ids(name: str) -> list[str]:
    deployment = Deployment(name="pair", recipe="two-sparks", hosts=("spark1", name))
    refused = list(placement.host_refusals([deployment], ["spark1", name], ["spark1", name]))
    assert all("\n" not in str(refusal) for refusal in refused)
    return [refusal.id for refusal in refused]


@pytest.mark.parametrize(
    "name", ["spark2\ntouch M\n", "spark2\n", "a b", "a'b", 'a"b', "$(id)", "`id`", "a;b", "-l", ""]
)
def test_a_name_that_a_shell_could_read_is_refused(name: str) -> None:
    assert ids(name) == ["host-name"]


@pytest.mark.parametrize("name", ["spark2", "Spark_2", "spark-2.lan", "10.0.0.2", "fd00::2", "2nd"])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert ids(name) == []
