"""Every field of a typed setting of the inventory changes what a Spark gets, or what refuses it: a file of its plan or
of its edge, a line of the plan, a refusal, or what the action of the edge reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from fakes import edge_cases
from fakes.fake_ansible import FakeRun
from project_files import DATA
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import plan
from vllm_spark.edge import recorder, steps
from vllm_spark.inventory import intent
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.edge import EdgeLimits, EdgeSettings
from vllm_spark.inventory.spec import SiteSettings

ADDRESS = "192.168.1.20"
# Everything that a limit or a setting can concern is on.
EDGE: Mapping[str, Any] = {
    "open": False, "site": edge_cases.SITE, "metrics_from": ["10.0.0.5"], "switch_by_request": True, "fair": True,
}  # fmt: skip
DEFAULTS = SiteSettings()
FILES = {"tls": "files", "certificate": "chain.pem", "private_key": "key.pem"}
# A field -> the value that is another one, and settings that it needs or that exclude it (None removes one). A number
# grows by one and a switch is turned without a row here.
Row = tuple[object, Mapping[str, Any]]
OTHER: Mapping[str, Row] = {
    "open": (True, {"site": None, "metrics_from": None, "switch_by_request": None, "fair": None}),
    "names": (["models.home"], {}),
    "allow_from": (["10.0.0.0/8"], {}),
    "origins": (["https://chat.home"], {}),
    "tls": ("off", {"site": None}),
    "certificate": ("other.pem", {**FILES, "site": None}),
    "private_key": ("other.pem", {**FILES, "site": None, "certificate": __file__}),
    "metrics_from": ([], {}),
    "metrics_server": ("spark1", {"metrics_from": [ADDRESS]}),
    "metrics_days": (31, {"metrics_server": "spark1", "metrics_from": [ADDRESS]}),
    "metrics_gib": (5, {"metrics_server": "spark1", "metrics_from": [ADDRESS]}),
    "site": ({"spark1": ADDRESS}, {}),
    "name": ("other-name", {}),
    "recipe": ("everything-in-bf16", {}),
    "hosts": (["spark2"], {}),
    "bind": (ADDRESS, {}),
    "overrides": ({"args": {"max-num-seqs": 4}}, {}),
    "accept_known_issues": (["env-attention-backend"], {"overrides": {"env": {"VLLM_ATTENTION_BACKEND": "X"}}}),
    "through": ({"url": "http://10.0.0.9:4000", "key": "HF_TOKEN", "model": "m"}, {}),
    "hub_dir": ("/data/hub", {}),
    "cache_dir": ("/data/cache", {}),
    "pip_index": ("https://user:secret@10.0.0.9/simple", {}),  # a login is refused; only an image that is built has one
}  # fmt: skip


def with_field(base: Mapping[str, Any], name: str, default: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings without the other value of a field, and with it."""
    if name not in OTHER:
        assert isinstance(default, int), f"{name}: name another value in OTHER"
        value: object = not base.get(name, default) if isinstance(default, bool) else base.get(name, default) + 1
        return {**base}, {**base, name: value}
    value, more = OTHER[name]
    settings = {key: kept for key, kept in {**base, **more}.items() if kept is not None}
    return settings, {**settings, name: value}


def effect(
    deployment: Mapping[str, Any] = edge_cases.DEMO, edge: Mapping[str, Any] = EDGE, site: SiteSettings = DEFAULTS
) -> str:
    """Return all that an inventory makes of the first Spark, or its refusals."""
    return _effect(json.dumps(deployment), json.dumps(edge), site)


@cache
def _effect(deployment: str, edge: str, site: SiteSettings) -> str:
    others = [edge_cases.OTHER, edge_cases.REPLICA, edge_cases.SPARE, edge_cases.THIRD]
    facts = json.loads((DATA / "facts" / "spark.json").read_text()) | {"records": {"demo": {"open": True}}}
    try:
        found = edge_cases.inventory([json.loads(deployment), *others], json.loads(edge))
        wanted = intent.resolve(dataclasses.replace(found, site=site), "spark1")
        planned = plan.of_host({"spark1": wanted}, {"spark1": facts}, "spark1", "test")
        assert wanted.edge is not None
        files = steps.files_of(wanted.edge, ADDRESS) if wanted.edge.is_wanted else []
        files += recorder.files(wanted.edge, ADDRESS)
        own = read_files(wanted) if wanted.edge.settings.tls == FILES["tls"] else ""
        return repr((plan.questions(wanted), planned, files, own))
    except RefusedError as error:
        return str(error)


def read_files(wanted: intent.HostIntent) -> str:
    """Return what the action says of the owner's own files, which are not there."""
    hostvars = {
        "spark_precheck_resolved": {"spec": wanted.to_json()["spec"]},
        "spark_precheck_box": {"facts": {"edge": {}}},
        "ansible_host": ADDRESS,
    }
    with pytest.raises(AnsibleActionFail) as caught:
        FakeRun(hostvars={"spark1": hostvars}).act("vllm_edge")
    return str(caught.value)


def fields(settings: type, *without: str) -> list[tuple[str, Any]]:
    """Return the name and the default of each field. A field without a default has its row in OTHER."""
    return [
        (field.name, field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default)
        for field in dataclasses.fields(settings)
        if field.name not in without
    ]


@pytest.mark.parametrize(("name", "default"), fields(EdgeLimits))
def test_a_limit_takes_effect(name: str, default: object) -> None:
    before, after = with_field({}, name, default)
    assert effect(edge={**EDGE, "limits": before}) != effect(edge={**EDGE, "limits": after})


@pytest.mark.parametrize(("name", "default"), fields(EdgeSettings, "limits", "chosen"))
def test_a_setting_of_the_edge_takes_effect(name: str, default: object) -> None:
    before, after = with_field(EDGE, name, default)
    assert effect(edge=before) != effect(edge=after)


def test_an_edge_that_nobody_chose_takes_effect() -> None:
    assert effect(edge={}) != effect(edge={"open": False})


@pytest.mark.parametrize(("name", "default"), fields(Deployment))
def test_a_field_of_a_deployment_takes_effect(name: str, default: object) -> None:
    before, after = with_field(edge_cases.DEMO, name, default)
    assert effect(before) != effect(after)


@pytest.mark.parametrize(("name", "default"), fields(SiteSettings))
def test_a_setting_of_a_site_takes_effect(name: str, default: object) -> None:
    before, after = with_field({}, name, default)
    assert effect(site=SiteSettings(**before)) != effect(site=SiteSettings(**after))
