"""A prune removes only objects that no current and no previous launch names."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.installed_states import BASE, container, deployment, derived, holdings, launch, pulled
from vllm_spark.lifecycle import installed, prune

CURRENT_AND_PREVIOUS = {"current": launch("c"), "previous": launch("a")}
SILENT = {**holdings()["docker"], "error": "gone"}
HISTORY = {"demo": [{"image": "vllm/vllm-openai:d", "digest": f"sha256:{'d' * 64}"}]}

DIGESTS = [*pulled("d")["digests"], f"vllm/vllm-openai@sha256:{'d' * 64}"]

IMAGES = [
    ("current and previous stay", [pulled("c"), pulled("a")], [], {}, []),
    ("one of the history goes", [pulled("c"), pulled("d")], [], {}, ["sha256:id-d"]),
    ("one that nobody has recorded is not ours", [pulled("e")], [], {}, []),
    ("one that a container is made of stays", [pulled("d")], [container("theirs", "sha256:id-d", False)], {}, []),
    ("one that somebody has named stays", [pulled("d", "mine:1")], [], {}, []),
    ("a local name is no name of somebody's", [pulled("d", "127.0.0.1:25093/x:1")], [], {}, ["sha256:id-d"]),
    ("one that somebody has pulled by its digest stays", [pulled("d") | {"digests": DIGESTS}], [], {}, []),
    ("a derived one that nobody runs goes", [derived("d")], [], {}, ["sha256:id-derived-d"]),
    (
        "a base goes after what was derived from it",
        [pulled("b"), derived("d")],
        [],
        {},
        ["sha256:id-derived-d", "sha256:id-b"],
    ),
    (
        "the base of one that is kept stays",
        [pulled("b"), derived("k")],
        [],
        {"other": deployment("other", current=launch("k", True))},
        [],
    ),
    ("another deployment's stays", [pulled("d")], [], {"other": deployment("other", previous=launch("d"))}, []),
    (
        "what only a failed launch ran goes",
        [pulled("f")],
        [],
        {"other": deployment("other", failed=launch("f"))},
        ["sha256:id-f"],
    ),
    (
        "what a rollback is under way to stays",
        [pulled("s")],
        [],
        {"other": deployment("other", swapping=launch("s"))},
        [],
    ),
]


@pytest.mark.parametrize(
    ("images", "containers", "more", "gone"), [case[1:] for case in IMAGES], ids=[c[0] for c in IMAGES]
)
def test_images(images: list[Any], containers: list[Any], more: dict[str, Any], gone: list[str]) -> None:
    held = holdings({"demo": deployment(**CURRENT_AND_PREVIOUS), **more}, images, containers, history=HISTORY)
    items, _ = prune.plan(held)
    assert [item.name for item in items if item.kind == "image"] == gone


def test_a_pulled_image_is_kept_until_it_has_run() -> None:
    held = holdings({"demo": deployment(**CURRENT_AND_PREVIOUS)}, [pulled("d"), pulled("e")], history=HISTORY)
    items, _ = prune.plan({**held, "pulled": [name for mark in "de" for name in pulled(mark)["digests"]]})
    assert [item.name for item in items] == ["sha256:id-d"]


def test_the_reason_for_a_kept_image_is_reported() -> None:
    held = holdings(
        {}, [pulled("d", "mine:1"), derived("e")], [container("theirs", "sha256:id-derived-e", False)], history=HISTORY
    )
    _, left = prune.plan(held)
    assert [("mine:1" in line, "theirs" in line) for line in left] == [(True, False), (False, True)]


def test_folders_files_and_caches() -> None:
    kept = deployment(mounts="acx", current=launch("c", True), previous=launch("a"))
    held = holdings(
        {"demo": kept},
        builds=[{"path": f"/var/lib/vllm-spark/build/recipe-{mark}-{mark * 12}", "bytes": 3} for mark in ("c", "o")],
        caches=[{"path": f"/var/lib/vllm-spark/cache/{name}", "bytes": 7} for name in ("demo", "gone")],
        shared_blobs=[{"path": f"/var/lib/vllm-spark/hub/blobs/ab/ab{'0' * 62}", "bytes": 9}],
    )
    items, left = prune.plan(held)
    assert [(item.kind, item.name.rpartition("/")[2], item.bytes) for item in items] == [
        ("path", f"recipe-o-{'o' * 12}", 3),
        ("path", "x-file", 1),
        ("path", "gone", 7),
        ("shared", f"ab{'0' * 62}", 9),
    ]
    assert left == []


@pytest.mark.parametrize(
    ("held", "ids"),
    [
        (holdings(), []),
        (holdings({"demo": deployment(current=launch("c"))}) | {"docker": SILENT}, ["prune-without-docker"]),
        (holdings({"demo": deployment(current=launch("c", record={}))}), ["prune-unreadable"]),
        (holdings({"demo": deployment(current=launch("c", runnable=False))}), ["prune-unreadable"]),
        (holdings({"demo": deployment(failed=launch("c", record={}))}), []),
    ],
)
def test_refusals(held: dict[str, Any], ids: list[str]) -> None:
    assert [refusal.id for refusal in prune.refusals({"spark1": held})] == ids


def test_the_printed_list_ends_with_the_bytes() -> None:
    items, left = prune.plan(holdings({}, [pulled("d", size=3 << 30)], history=HISTORY))
    message = installed.format_items(items, left, "would remove")
    assert message[0].startswith(f"would remove image sha256:id-d, 3.0 GiB: {BASE.partition('@')[0]}@sha256:ddd")
    assert message[-1] == "would remove 1 in all, 3.0 GiB or more"
    assert installed.format_items([], ["why"], "removes") == ["nothing to take away", "why"]
