"""The objects that `remove` removes, their order, the objects that it keeps, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.installed_states import BASE, container, deployment, derived, holdings, launch, pulled
from vllm_spark.lifecycle import remove
from vllm_spark.lifecycle.remove import RemoveRequest

STATE = "/var/lib/vllm-spark"

OF_C = pulled("c")["digests"][0]
ONE = {"demo": deployment(current=launch("c", True, needs={"pair": True, "peers": ["spark2"]}), failed=launch("f"))}
PAIR = holdings(
    ONE,
    [pulled("c"), derived("c", base=OF_C), pulled("f"), pulled("x")],
    [container("vllm-demo", "sha256:id-derived-c"), container("theirs", "sha256:id-x", False)],
    units={
        "vllm-spark-firewall.service": "active",
        "vllm@demo.service": "active",
        "vllm-spark-pull-image.service": "active",
    },
    unit_files=[
        "/etc/systemd/system/multi-user.target.wants/vllm@demo.service",
        "/etc/systemd/system/vllm@.service",
        "/etc/systemd/system/vllm@demo.service.d/exclude.conf",
    ],
    unit_files_of_others=["/etc/systemd/system/vllm@demo.service.d/override.conf"],
    programs=["/usr/local/lib/vllm-spark", "/usr/local/bin/vllm-switch"],
    run=[{"path": f"/run/vllm-spark/{name}", "bytes": 0} for name in ("demo", "operator.lock")],
    state=[{"path": f"{STATE}/{name}", "bytes": 2} for name in ("build", "cache", "fabric", "history", "hub", "pull")],
    caches=[{"path": f"{STATE}/cache/demo", "bytes": 8}],
    history={"demo": []},
    states=[f"{STATE}/states/demo.jsonl", f"{STATE}/states/other-demo.jsonl"],
    paths={"/hub/models--org--model-c": 6, "/hub/models--org--model-f": 6, f"{STATE}/cache/demo": 8},
)


def names(held: dict[str, Any], **requested: Any) -> list[str]:
    items, _ = remove.plan(held, RemoveRequest(limited=True, **requested))
    return [f"{item.kind} {item.name}" for item in items]


def test_a_pulled_image_that_never_ran_is_removed_with_everything() -> None:
    waiting = holdings({}, [pulled("d"), pulled("e")], pulled=pulled("d")["digests"])
    assert loud(names(waiting)) == ["image sha256:id-d"]


def test_removing_one_deployment_keeps_unused_derived_images() -> None:
    held = holdings({"demo": deployment(current=launch("c"))}, [pulled("c"), derived("d", base=OF_C)])
    assert [name for name in names(held, deployment="demo") if name.startswith("image")] == ["image sha256:id-c"]


def test_everything_is_removed_in_an_order_that_may_be_interrupted_anywhere() -> None:
    assert names(PAIR) == [
        "unit vllm@demo.service",
        "unit vllm-spark-pull-image.service",
        # It guards what the others have not stopped yet.
        "unit vllm-spark-firewall.service",
        "container vllm-demo",
        "image sha256:id-derived-c",
        "image sha256:id-c",
        "image sha256:id-f",
        "path /etc/systemd/system/multi-user.target.wants/vllm@demo.service",
        "path /etc/systemd/system/vllm@.service",
        "path /etc/systemd/system/vllm@demo.service.d/exclude.conf",
        "path /usr/local/lib/vllm-spark",
        "path /usr/local/bin/vllm-switch",
        "empty /etc/systemd/system/vllm@demo.service.d",
        "reload systemd",
        "path /run/vllm-spark/demo",
        f"path {STATE}/build",
        f"path {STATE}/pull",
        # The stop of a unit writes them. A start of release 0.1.0 has had none.
        f"trace {STATE}/starts",
        "trace /run/vllm-spark/boot",
        "trace /run/vllm-spark/starts.lock",
        "path /etc/vllm-spark",
        f"path {STATE}/history",
        "empty /run/vllm-spark",
        f"empty {STATE}/hub",
        f"empty {STATE}/cache",
        f"empty {STATE}",
    ]


def loud(result: list[str]) -> list[str]:
    return [name for name in result if not name.startswith(("empty", "reload", "trace"))]


def after(gone: set[str]) -> dict[str, Any]:
    """Return the holdings of the host without the removed objects."""
    docker = PAIR["docker"]
    cut = {
        **PAIR,
        "docker": {
            "error": "",
            "images": [image for image in docker["images"] if f"image {image['id']}" not in gone],
            "containers": [entry for entry in docker["containers"] if f"container {entry['name']}" not in gone],
        },
        "units": {name: state for name, state in PAIR["units"].items() if f"unit {name}" not in gone},
        "accounts": [],
        "packages": [],
        **{key: [path for path in PAIR[key] if f"path {path}" not in gone] for key in ("unit_files", "programs")},
        **{key: [entry for entry in PAIR[key] if f"path {entry['path']}" not in gone] for key in ("run", "state")},
    }
    config, history = "path /etc/vllm-spark" in gone, f"path {STATE}/history" in gone
    return cut | ({"config": "", "deployments": {}} if config else {}) | ({"history": {}} if history else {})


@pytest.mark.parametrize("done", range(len(loud(names(PAIR)))))
def test_cut_off_anywhere_the_next_run_takes_the_rest(done: int) -> None:
    wanted = loud(names(PAIR))
    assert loud(names(after({*wanted[:done]}))) == wanted[done:]


def test_kept_objects_are_listed_with_the_option_that_removes_them() -> None:
    _, left = remove.plan(PAIR, RemoveRequest(limited=True))
    assert [
        word for word in ("remove_weights=true", "remove_caches=true", "override.conf") if word not in str(left)
    ] == []


def test_weights_and_caches_are_removed_only_on_request() -> None:
    result = names(PAIR, weights=True, caches=True)
    assert {"path /hub/models--org--model-c", "path /hub/models--org--model-f", f"path {STATE}/cache/demo"} <= {*result}
    assert not [name for name in names(PAIR) if "models--" in name or "cache/" in name]


def test_a_cache_with_another_name_than_its_deployment_is_kept() -> None:
    odd = launch("c", needs={"cache": "/home/me"})
    assert (
        names(holdings({"demo": deployment(current=odd)}, paths={"/home/me": 1}), caches=True)[0]
        == "path /etc/vllm-spark"
    )


def test_models_of_the_own_folder_go_after_the_records_too() -> None:
    held = holdings(models=[{"path": f"{STATE}/hub/models--org--old", "bytes": 5}])
    assert names(held, weights=True)[0] == f"path {STATE}/hub/models--org--old"
    assert names(held) == []


@pytest.mark.parametrize("held", [holdings(), holdings(unit_files_of_others=["/etc/systemd/system/vllm@mine.service"])])
def test_a_box_that_was_never_touched_is_left_alone(held: dict[str, Any]) -> None:
    assert names(held) == []


TWO = {"demo": ONE["demo"], "other": deployment("other", current=launch("f"))}


def test_removing_one_deployment_keeps_objects_of_others() -> None:
    held = {**PAIR, "deployments": TWO, "history": {"demo": [], "other": []}}
    result = names(held, deployment="demo", weights=True, caches=True)
    assert result == [
        "unit vllm@demo.service",
        "container vllm-demo",
        "image sha256:id-derived-c",
        "image sha256:id-c",
        "path /hub/models--org--model-c",
        f"path {STATE}/cache/demo",
        "path /etc/systemd/system/multi-user.target.wants/vllm@demo.service",
        "path /etc/systemd/system/vllm@demo.service.d/exclude.conf",
        "empty /etc/systemd/system/vllm@demo.service.d",
        "reload systemd",
        "path /run/vllm-spark/demo",
        "path /etc/vllm-spark/demo",
        f"path {STATE}/states/demo.jsonl",
        f"trace {STATE}/starts/demo.json",
        f"path {STATE}/history/demo.jsonl",
    ]
    _, left = remove.plan(held, RemoveRequest(deployment="demo", weights=True))
    assert [line for line in left if "spark2 has the other half of demo" in line] != []
    assert [line for line in left if "models--org--model-f stays: another deployment" in line] != []


def test_a_host_without_the_deployment_is_left_alone() -> None:
    assert remove.plan(PAIR, RemoveRequest(deployment="absent")) == ([], [])


BROKEN = {**PAIR, "docker": {**PAIR["docker"], "error": "no socket"}}
REFUSALS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, PAIR, ["remove-everything"]),
    ({"limited": True}, PAIR, []),
    ({"everything": True}, PAIR, []),
    ({"preview": True}, PAIR, []),
    ({"deployment": "demo"}, PAIR, []),
    ({"deployment": "absent"}, PAIR, ["remove-unknown"]),
    ({"limited": True}, BROKEN, ["remove-without-docker"]),
    ({"limited": True}, holdings() | {"docker": BROKEN["docker"]}, []),
]


@pytest.mark.parametrize(("requested", "held", "ids"), REFUSALS)
def test_refusals(requested: dict[str, Any], held: dict[str, Any], ids: list[str]) -> None:
    assert [refusal.id for refusal in remove.refusals(RemoveRequest(**requested), {"spark1": held})] == ids


def test_remaining_objects_are_listed() -> None:
    items, _ = remove.plan(holdings({}, [pulled("b"), derived("d", base=BASE)]), RemoveRequest(limited=True))
    assert "sha256:id-derived-d" in str(remove.remaining_lines("spark1", items))
