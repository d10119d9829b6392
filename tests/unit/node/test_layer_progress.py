"""Progress of a pull from the events of both image stores."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vllm_spark.node.pull.layer_progress import LayerProgress, layer_id

BIG, SMALL = "a" * 12, "b" * 12
# Of Docker 20.10.24 with overlay2, through the blob server, which names no size of a blob (2026-11-23).
RECORDED = """
{"status": "Pulling from derived/x", "id": "1"}
{"status": "Pulling fs layer", "progressDetail": {}, "id": "b26664905fdc"}
{"status": "Pulling fs layer", "progressDetail": {}, "id": "c14010d01ed9"}
{"status": "Downloading", "progressDetail": {"current": 557056}, "progress": " 557.1kB", "id": "b26664905fdc"}
{"status": "Downloading", "progressDetail": {"current": 557056}, "progress": " 557.1kB", "id": "c14010d01ed9"}
{"status": "Verifying Checksum", "progressDetail": {}, "id": "c14010d01ed9"}
{"status": "Download complete", "progressDetail": {}, "id": "c14010d01ed9"}
{"status": "Verifying Checksum", "progressDetail": {}, "id": "b26664905fdc"}
{"status": "Download complete", "progressDetail": {}, "id": "b26664905fdc"}
{"status": "Extracting", "progressDetail": {"current": 557056}, "progress": " 557.1kB", "id": "b26664905fdc"}
{"status": "Extracting", "progressDetail": {"current": 3001123}, "progress": " 3.001MB", "id": "b26664905fdc"}
{"status": "Pull complete", "progressDetail": {}, "id": "b26664905fdc"}
{"status": "Extracting", "progressDetail": {"current": 557056}, "progress": " 557.1kB", "id": "c14010d01ed9"}
{"status": "Extracting", "progressDetail": {"current": 1000494}, "progress": "     1MB", "id": "c14010d01ed9"}
{"status": "Pull complete", "progressDetail": {}, "id": "c14010d01ed9"}
{"status": "Digest: sha256:ad069a1a77ba8b2277f52c5199a7d24ca4f05c59eb3f8e3f87c06def93edea0a"}
"""


def event(layer: str, status: str, **detail: object) -> dict[str, Any]:
    return {"id": layer, "status": status, "progressDetail": detail}


# name -> events, each with (phase, done, total) after it. A size is 100 for BIG and 10 for SMALL.
# Those of the containerd store are as moby writes them (daemon/containerd/progress.go).
STREAMS: dict[str, list[tuple[dict[str, Any], tuple[str, int, int]]]] = {
    "overlay2": [
        ({"status": "Pulling from vllm/vllm-openai", "id": "sha256:1"}, ("pulling", 0, 110)),
        (event(BIG, "Pulling fs layer"), ("pulling", 0, 110)),
        (event(BIG, "Downloading", current=40, total=100), ("pulling", 40, 110)),
        (event(SMALL, "Download complete"), ("pulling", 50, 110)),
        (event(SMALL, "Extracting", current=10, total=10), ("pulling", 50, 110)),
        (event(SMALL, "Pull complete"), ("pulling", 50, 110)),
        (event(BIG, "Verifying Checksum"), ("unpacking", 10, 110)),
        (event(BIG, "Download complete"), ("unpacking", 10, 110)),
        (event(BIG, "Extracting", current=60, total=100), ("unpacking", 70, 110)),
        (event(BIG, "Pull complete"), ("unpacking", 110, 110)),
        ({"status": "Digest: sha256:1"}, ("unpacking", 110, 110)),
    ],
    "overlay2 with a known layer": [
        (event(BIG, "Already exists"), ("pulling", 0, 10)),
        (event(SMALL, "Downloading", current=5, total=10), ("pulling", 5, 10)),
        (event(SMALL, "Pull complete"), ("unpacking", 10, 10)),
    ],
    "containerd": [
        (event("c" * 12, "Download complete"), ("pulling", 0, 110)),
        (event(BIG, "Downloading", current=40, total=100), ("pulling", 40, 110)),
        (event(SMALL, "Already exists"), ("pulling", 40, 100)),
        (event(BIG, "Download complete"), ("unpacking", 0, 0)),
        (event(BIG, "Extracting", current=3, units="s"), ("unpacking", 0, 0)),
        (event(BIG, "Pull complete"), ("unpacking", 100, 100)),
    ],
    "everything is known": [
        (event(BIG, "Already exists"), ("pulling", 0, 10)),
        (event(SMALL, "Already exists"), ("pulling", 0, 0)),
    ],
    "a download that starts again": [
        (event(BIG, "Downloading", current=90, total=100), ("pulling", 90, 110)),
        (event(BIG, "Retrying in 1 second"), ("pulling", 90, 110)),
        (event(BIG, "Downloading", current=0, total=100), ("pulling", 0, 110)),
    ],
    "fields that are missing or larger than a layer": [
        ({"id": BIG, "status": "Downloading"}, ("pulling", 0, 110)),
        (event(BIG, "Downloading", current=1000, total=100), ("pulling", 100, 110)),
        ({}, ("pulling", 100, 110)),
    ],
}


@pytest.mark.parametrize("name", STREAMS)
def test_stream(name: str) -> None:
    layers = LayerProgress({BIG: 100, SMALL: 10})
    for entry, expected in STREAMS[name]:
        layers.add(entry)
        assert (layers.phase, layers.done, layers.total) == expected, entry


def test_a_recorded_stream_grows_to_the_end_of_each_phase() -> None:
    layers = LayerProgress({"b26664905fdc": 3_001_123, "c14010d01ed9": 1_000_494})
    seen = []
    for line in RECORDED.strip().splitlines():
        layers.add(json.loads(line))
        seen.append((layers.phase, layers.done))
    assert seen == sorted(seen, key=lambda step: (step[0] == "unpacking", step[1]))
    assert ("pulling", 1_114_112) in seen
    assert ("unpacking", 557_056) in seen
    assert (layers.phase, layers.done, layers.total) == ("unpacking", 4_001_617, 4_001_617)


def test_a_layer_is_named_by_the_first_digits_of_its_digest() -> None:
    assert layer_id(f"sha256:{'0123456789abcdef' * 4}") == "0123456789ab"
