"""An unchanged server raises no alarm; a slower one is found, and its cause is named."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_spark.bench import comparison, evidence, verdict
from vllm_spark.bench.evidence import Run
from vllm_spark.bench.profiles import ReportedFigure
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.node.bench import figures
from vllm_spark.recipe import loader

DENSE, MIXTURE = "attention=fp8 mlp=fp8", "attention=fp8 experts=fp8"
CELLS = [("chat", 1, 0), ("code", 1, 0), ("json", 1, 0), ("long", 1, 8192), ("chat", 4, 0)]
# Of a server: decode in tok/s, prefill in tok/s, acceptance, SM clock in MHz, swap in GiB.
SERVER = {"decode": 50.0, "prefill": 2000.0, "acceptance": 0.5, "clock": 2480.0, "swap": 0.0}


def records(
    seed: int, noise: float, *, layout: str = MIXTURE, topology: str = "1 node", runs: int = 4, **server: float
) -> list[dict[str, Any]]:
    """Return a run whose figures have normal noise of that relative size. `server` replaces values of SERVER."""
    chance, values = random.Random(seed), {**SERVER, **server}  # noqa: S311  not a secret
    key = dict.fromkeys(("model", "commit", "image", "launch", "hosts", "toolkit", "protocol"), "x")
    key |= {"layout": layout, "topology": topology}
    subject = dict.fromkeys(("deployment", "recipe", "served_name", "url", "engine_version"), "")
    started = f"2026-01-01T00:{seed % 60:02d}:00Z"
    run = {
        "record": "run",
        "schema": 1,
        "id": f"{seed:012x}",
        "started": started,
        "profile": {"name": "standard"},
        "key": key,
        "subject": subject,
        "host": {},
    }

    def noisy(metric: str, value: float) -> dict[str, Any]:
        return dict(figures.figure(metric, [value * chance.gauss(1, noise) for _ in range(runs)]))

    entries: list[dict[str, Any]] = [run]
    for corpus, streams, depth in CELLS:
        cell = {
            "id": f"{corpus} d{depth} s{streams}",
            "corpus": corpus,
            "prompt": 512,
            "output": 256,
            "depth": depth,
            "streams": streams,
            "sampling": {},
            "server": {},
        }
        tokens = 1 + 4 * values["acceptance"]
        shown = {
            "decode": noisy("decode", values["decode"]),
            "step": noisy("step", 1000 * tokens / values["decode"]),
            "prefill": noisy("prefill", values["prefill"]),
            "first_token": noisy("first_token", 512_000 / values["prefill"]),
            "acceptance": noisy("acceptance", values["acceptance"]),
        }
        samples = [
            {"t": float(t), "sm_mhz": values["clock"], "swap_gib": values["swap"], "memory_gib": 80.0} for t in range(5)
        ]
        entries.append(
            {
                "record": "cell",
                "cell": cell,
                "state": "measured",
                "started": 0.0,
                "seconds": 9.0,
                "runs": runs,
                "figures": shown,
                "faults": [],
                "phases": {},
                "samples": {"spark1": samples},
            }
        )
    return [*entries, {"record": "end", "seconds": 60.0, "measured": len(CELLS), "failed": 0}]


def run(seed: int, noise: float, **more: Any) -> Run:
    return evidence.run_of(records(seed, noise, **more))


# Within one run, and for each topology: the spreads that its sources report.
UNCHANGED = [
    (0.002, {"layout": DENSE}),
    (0.005, {"layout": DENSE}),
    (0.01, {"layout": MIXTURE}),
    (0.02, {"layout": MIXTURE}),
    (0.03, {"layout": DENSE, "topology": "2 nodes, tp 2, ray"}),
    (0.06, {"layout": DENSE, "topology": "2 nodes, tp 2, ray"}),
]


@pytest.mark.parametrize(("noise", "server"), UNCHANGED)
def test_twenty_runs_of_an_unchanged_server_raise_no_alarm(noise: float, server: dict[str, Any]) -> None:
    runs = [run(seed, noise, **server) for seed in range(21)]
    rows = [row for before, after in itertools.pairwise(runs) for row in comparison.rows(before, after)]
    assert len(rows) == 20 * len(CELLS) * 5
    assert [row for row in rows if row.state != "same"] == []


# Name: (noise, the server before, what is worse, a part of the cause).
SLOWER = {
    "clock cap": (
        0.005,
        {"layout": DENSE},
        {"clock": 2150.0, "decode": 43.0, "prefill": 1500.0},
        "the GPU's clock fell from 2480 to 2150 MHz",
    ),
    "eager": (0.01, {}, {"decode": 40.0}, "enforce-eager"),
    "wrong drafter": (
        0.01,
        {},
        {"acceptance": 0.2, "decode": 30.0},
        "acceptance fell from 50% to 20% while a step takes as long as before",
    ),
    "swap": (0.01, {}, {"swap": 3.0, "decode": 30.0, "prefill": 900.0}, "swap in use rose from 0.0 to 3.0 GiB"),
    "dense by 8 %": (0.005, {"layout": DENSE}, {"decode": 46.0}, "a step takes"),
    "mixture by 15 %": (0.02, {}, {"decode": 42.5}, "a step takes"),
}


@pytest.mark.parametrize(("noise", "server", "change", "cause"), SLOWER.values(), ids=SLOWER)
def test_a_slower_server_is_found_and_its_cause_is_named(
    noise: float, server: dict[str, Any], change: dict[str, float], cause: str
) -> None:
    for seed in range(10):
        judged = verdict.verdict(run(seed + 100, noise, **server, **change), run(seed, noise, **server), None)
        assert not judged.good
        # One noisy cell of five may hide in its band; the verdict must not.
        named = [one.text for one in judged.statements if one.state == "worse" and cause in one.text]
        assert len(named) >= 3
        assert judged.sentence.startswith("Slower than expected: ")


def test_a_faster_server_is_good() -> None:
    judged = verdict.verdict(run(1, 0.005, decode=60.0), run(2, 0.005), None)
    assert judged.good
    assert {one.state for one in judged.statements} == {"better"}


def test_nothing_is_good_without_data() -> None:
    judged = verdict.verdict(run(1, 0.01), None, None)
    assert judged.sentence.startswith("Not judged")
    assert judged.statements == ()


def test_a_cell_without_figures_is_named() -> None:
    entries = records(1, 0.01)
    entries[1] |= {
        "state": "worthless",
        "figures": {},
        "faults": [{"id": "swap", "what": "spark1: 90 MiB were swapped"}],
    }
    judged = verdict.verdict(evidence.run_of(entries), run(2, 0.01), None)
    assert not judged.good
    assert judged.sentence == "1 cells have no figures: chat d0 s1 worthless: spark1: 90 MiB were swapped."
    assert {row.state for row in judged.rows if row.cell == "chat d0 s1"} == {"not measured"}


def test_a_recipes_forecast_and_reported_figures_are_judged() -> None:
    recipe = loader.load("gemma-4-26b-a4b-fp8").document
    reported = [
        ReportedFigure("chat d0 s1", "001 table 1", recipe["name"], "decode", 36.9),
        ReportedFigure("code d0 s1", "001 table 1", recipe["name"], "decode", 60.0),
        ReportedFigure("code d0 s9", "001 table 1", recipe["name"], "decode", 36.9),
        ReportedFigure("chat d0 s1", "004 table 2", "another", "decode", 99.0),
    ]
    judged = verdict.verdict(run(1, 0.005, decode=37.0), None, recipe, reported)
    by_text = [(one.against, one.state) for one in judged.statements]
    assert by_text == [
        ("forecast", "good"),
        ("report 001 table 1", "good"),
        ("report 001 table 1", "worse"),
        ("report 001 table 1", "unknown"),
    ]


def write(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_the_commands_find_the_run_before_and_set_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, good, bad = (
        write(tmp_path / f"{name}.jsonl", records(seed, 0.005, **server))
        for name, seed, server in (("old", 1, {}), ("good", 2, {}), ("bad", 3, {"decode": 30.0}))
    )
    (tmp_path / "notes.jsonl").write_text("no evidence", encoding="utf-8")
    assert main.main(["bench", "verdict", str(good)]) == 0
    assert capsys.readouterr().out.startswith("As expected: run of 2026-01-01T00:01:00Z.")
    assert main.main(["bench", "verdict", str(bad), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["good"] is False
    assert "run of 2026-01-01T00:02:00Z" in {one["against"] for one in document["statements"]}
    assert main.main(["bench", "compare", str(old), str(good)]) == 0
    assert main.main(["bench", "compare", str(old), str(bad)]) == 1
    assert "worse" in capsys.readouterr().out


def damaged(change: Callable[[list[dict[str, Any]]], object]) -> str:
    entries = records(1, 0.01)
    change(entries)
    return "".join(json.dumps(entry) + "\n" for entry in entries)


BROKEN = {
    "empty": ("", "the first record is"),
    "not JSON": ("{]\n", "line 1 is not JSON"),
    "another file": ('{"a": 1}\n', "has no record that this version knows"),
    "a cell first": (damaged(lambda entries: entries.pop(0)), "the first record is"),
    "two runs": (damaged(lambda entries: entries.append(entries[0])), "it has two records of a run"),
    "newer schema": (damaged(lambda entries: entries[0].update(schema=2)), "has the schema"),
    "no key": (damaged(lambda entries: entries[0]["key"].pop("launch")), "has no text key.launch"),
    "no figures": (damaged(lambda entries: entries[1].pop("figures")), "line 2 has no figures"),
    "unknown metric": (damaged(lambda entries: entries[1]["figures"].update(speed={})), "has the unknown metric"),
    "another unit": (
        damaged(lambda entries: entries[1]["figures"]["decode"].update(unit="ms")),
        "decode in another unit than tok/s",
    ),
    "text as value": (
        damaged(lambda entries: entries[1]["figures"]["decode"].update(values=["9"])),
        "a value of decode that is not a number",
    ),
    "NaN": (
        damaged(lambda entries: entries[1]["figures"]["decode"].update(median=float("nan"))),
        "NaN is not a number of JSON",
    ),
    "unknown state": (damaged(lambda entries: entries[1].update(state="fine")), "has the state"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_with_its_line(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(text, encoding="utf-8")
    assert main.main(["bench", "verdict", str(file)]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert "Fix:" in error


def test_the_rest_of_an_interrupted_line_is_ignored(tmp_path: Path) -> None:
    file = write(tmp_path / "run.jsonl", records(1, 0.01)[:-1])
    with file.open("a", encoding="utf-8") as stream:
        stream.write('{"record": "ce')
    loaded = evidence.load(file)
    assert (len(loaded.cells), loaded.end) == (len(CELLS), None)
    assert (paths.ROOT / "docs" / "runbooks" / "bench-evidence.md").exists()
