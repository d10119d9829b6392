"""inventories/sample documents every variable: it has each variable that a role reads, and it is valid."""

from __future__ import annotations

import re

import yaml

from vllm_spark.core import paths
from vllm_spark.inventory.deployment import SCHEMA, parse
from vllm_spark.recipe import loader

SAMPLE = paths.ROOT / "inventories" / "sample" / "group_vars" / "all" / "vllm.yml"


def test_it_has_every_variable_that_a_role_reads() -> None:
    defaults = (paths.ROOT / "roles").glob("*/defaults/main.yml")
    read = {name for file in defaults for name in re.findall(r"\b(vllm_\w+) \| default\(", file.read_text())}
    assert read
    assert read == set(yaml.safe_load(SAMPLE.read_text()))


def test_its_deployments_are_valid_and_have_every_key() -> None:
    sample = yaml.safe_load(SAMPLE.read_text())
    deployments = parse(sample["vllm_deployments"])
    assert {deployment.recipe for deployment in deployments} <= set(loader.names([paths.RECIPES]))
    known = set(yaml.safe_load(SCHEMA.read_text())["items"]["properties"])
    assert known == {key for entry in sample["vllm_deployments"] for key in entry}
