"""Samples of the ranks beside the head: their place in the run, the clocks of the hosts, and what they judge."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.bench_runs import END, KEY, cell_record, run_record, text
from vllm_spark.bench import compare, evidence, ranks, verdict
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.ranks import HostClock, Merged, RankSamples, Reading

# The cell began 40 s after the start of the run, at this Unix time of the head.
CLOCK, STARTED, SECONDS = 1_795_000_040.0, 40.0, 9.0
SAME = HostClock(0.0, 0.0)
PAIR = {"key": KEY | {"topology": "2 nodes, tp 2, ray", "hosts": "spark-1,spark-2"}}
CAPPED = {"sm_mhz": 1800.0, "gpu_percent": 96.0}


def cell(**changes: Any) -> dict[str, Any]:
    times = {"started": STARTED, "clock": CLOCK, "seconds": SECONDS}
    return cell_record({"decode": [60.0, 60.1, 60.2]}) | times | changes


def rank(host: str = "spark-2", gpu: str = "NVIDIA GB10", **sample: Any) -> RankSamples:
    usual = {"sm_mhz": 2500.0, "gpu_percent": 96.0, "throttle": "", "swapped_mib": 0.0}
    values = usual | sample
    return RankSamples(host, gpu, tuple({"t": CLOCK - 2 + second, **values} for second in range(20)), SAME)  # type: ignore[misc]


def merged(*of: RankSamples, cells: list[dict[str, Any]] | None = None, accepted: tuple[str, ...] = ()) -> Merged:
    return ranks.merge(text(run_record(**PAIR), *(cells or [cell()]), END), of, accepted)


def parsed(result: Merged) -> Evidence:
    return evidence.parse(result.text, Path("run.jsonl"))


def written(*times: float, gpu: str = "NVIDIA GB10", host: str = "spark-2") -> str:
    """Return one part of a file of rank_job."""
    records = [{"host": host, "gpu": gpu}, *({"t": t, "sm_mhz": 2500.0} for t in times)]
    return "\n" + "".join(f"{json.dumps(record)}\n" for record in records)


def test_the_offset_is_the_mean_of_both_ways() -> None:
    # The host is 5 s ahead. The command needs 0.3 s to the host and 0.1 s back, and 2 s there.
    reading = ranks.reading("105.300000000\n{}\n107.300000000\n", sent=100.0, received=102.4)
    assert reading is not None
    assert reading.clock.offset == pytest.approx(5.1)
    assert reading.clock.error == pytest.approx(0.2)
    assert abs(reading.clock.offset - 5.0) <= reading.clock.error


@pytest.mark.parametrize("printed", ["", "sudo: a password is required\n", "1795000000.1\n"])
def test_a_command_that_did_not_run_is_no_reading(printed: str) -> None:
    assert ranks.reading(printed, 1.0, 2.0) is None


def test_a_file_is_read_from_between_the_times() -> None:
    # A terminal ends lines with CR LF, sudo may print a line before, and the last line of the file may be cut.
    printed = 'sudo: a warning\r\n1795000000.1\r\n\r\n{"a":1}\r\n{"b":\r\n1795000000.2\r\n'
    reading = ranks.reading(printed, 1795000000.0, 1795000000.3)
    assert reading is not None
    assert reading.text == '{"a":1}\n{"b":\n'
    missing = ranks.reading("1795000000.1\n\n1795000000.2\n", 1795000000.0, 1795000000.3)
    assert missing is not None
    assert missing.text == ""


def test_the_command_prints_the_file_and_the_times_of_this_host(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text('{"t":1}\n{"t":', encoding="utf-8")
    for path, expected in ((file, '{"t":1}\n{"t":\n'), (tmp_path / "missing", "")):
        sent = time.time()
        done = subprocess.run(["sh", "-c", ranks.command(f"'{path}'")], check=True, capture_output=True, text=True)
        reading = ranks.reading(done.stdout, sent, time.time())
        assert reading is not None
        assert reading.text == expected
        assert abs(reading.clock.offset) <= reading.clock.error < 60


def test_samples_are_moved_to_the_clock_of_the_head() -> None:
    # The rank is 7 s ahead of the controller and the head 3 s behind it: 10 s apart.
    reading = Reading(written(CLOCK + 10, CLOCK + 11), HostClock(7.0, 0.1))
    found = ranks.samples("spark-2", reading, HostClock(-3.0, 0.1))
    assert [sample["t"] for sample in found.samples] == [CLOCK, CLOCK + 1]
    assert (found.host, found.gpu) == ("spark-2", "NVIDIA GB10")
    assert parsed(merged(found)).run["host"] == {
        "spark-1": {"clock": "that of the samples"},
        "spark-2": {"clock": "10.00 s ahead, ± 0.20 s (of spark-1's)"},
    }


def test_a_run_that_continued_keeps_the_samples_of_its_parts() -> None:
    cut = '{"t":1795000041.0,"sm_m'
    found = ranks.samples("spark-2", Reading(written(CLOCK) + cut + written(CLOCK + 100), SAME), SAME)
    first, second = cell(), cell(started=60.0, clock=CLOCK + 95)
    second["cell"] = {**second["cell"], "id": "after a pause of 75 s"}
    cells = list(parsed(merged(found, cells=[first, second])).cells.values())
    times = [[sample["t"] for sample in one["samples"]["spark-2"]] for one in cells]
    assert times == [[STARTED], [65.0]]


def test_each_cell_gets_the_samples_of_its_time() -> None:
    [found] = parsed(merged(rank(), rank("spark-3"))).cells.values()
    assert list(found["samples"]) == ["spark-1", "spark-2", "spark-3"]
    times = [sample["t"] for sample in found["samples"]["spark-2"]]
    assert times == [STARTED + second for second in range(9)]
    assert (found["state"], found["faults"]) == ("measured", [])


FAULTS = {
    "clock-cap": {"sm_mhz": 1800.0},
    "thermal-throttling": {"throttle": "hw_thermal_slowdown"},
    "power-brake": {"throttle": "hw_power_brake_slowdown"},
    "swap": {"swapped_mib": 100.0},
}


@pytest.mark.parametrize(("id_", "sample"), FAULTS.items(), ids=FAULTS)
def test_a_fault_of_one_rank_makes_the_cell_worthless_and_names_the_host(id_: str, sample: dict[str, Any]) -> None:
    result = merged(rank("spark-2"), rank("spark-3", **sample))
    run = parsed(result)
    [found] = run.cells.values()
    assert (found["state"], found["figures"]) == ("worthless", {})
    assert [(fault["id"], fault["what"].partition(":")[0]) for fault in found["faults"]] == [(id_, "spark-3")]
    assert run.end is not None
    assert (run.end["measured"], run.end["failed"]) == (0, 1)
    judged = verdict.verdict(run)
    assert judged.state == "worthless"
    assert f"{id_}: spark-3: " in judged.sentence
    assert ranks.summary(result)[0].startswith(f"worthless: {id_}: spark-3: ")


def test_an_accepted_fault_is_a_warning() -> None:
    result = merged(rank(**CAPPED), accepted=("clock-cap",))
    [found] = parsed(result).cells.values()
    assert (found["state"], [fault["id"] for fault in found["faults"]]) == ("measured", ["clock-cap"])
    assert ranks.summary(result, ("clock-cap",))[0].startswith("warning: clock-cap: spark-2: 1800 MHz")


def test_the_clock_of_another_gpu_is_no_fault() -> None:
    assert parsed(merged(rank(gpu="NVIDIA H200", **CAPPED))).cells["code s1"]["state"] == "measured"


def test_a_rank_without_samples_is_a_warning() -> None:
    cells = [cell(), cell()]
    cells[1]["cell"] = {**cells[1]["cell"], "id": "another"}
    result = merged(RankSamples("spark-2", "", (), SAME), cells=cells)
    found = parsed(result).cells["code s1"]
    assert (found["state"], found["faults"]) == ("measured", [{"id": "unsampled", "what": "spark-2: no samples"}])
    assert ranks.summary(result) == ["warning: unsampled: spark-2: no samples (cell code s1 and 1 more)"]
    short = parsed(merged(RankSamples("spark-2", "", (), SAME), cells=[cell(seconds=0.8)]))
    assert short.cells["code s1"]["faults"] == []


def test_a_cell_that_failed_stays_failed() -> None:
    failed = cell(state="failed", figures={}, faults=[{"id": "status-500", "what": "EngineDeadError"}])
    [found] = parsed(merged(rank(**CAPPED), cells=[failed])).cells.values()
    assert found["state"] == "failed"
    assert [fault["id"] for fault in found["faults"]] == ["status-500", "clock-cap"]


def test_cells_without_times_of_day_and_solo_evidence_stay_as_they_are() -> None:
    old = cell()
    del old["clock"]
    content = text(run_record(), old, END)
    assert parsed(ranks.merge(content, [rank(**CAPPED)])).cells == {"code s1": old}
    solo = text(run_record(), cell(), END)
    assert evidence.parse(ranks.merge(solo, []).text, Path("a")) == evidence.parse(solo, Path("a"))


def test_a_cut_line_is_left_out() -> None:
    content = text(run_record(), cell()) + '{"record": "cell", "cu\n'
    assert len(ranks.merge(content, [rank()]).text.splitlines()) == 2


def test_a_slower_rank_is_named_as_the_cause() -> None:
    slow = {"step": [52.0, 52.1, 52.2], "prefill": [1200.0, 1201.0, 1202.0], "decode": [46.0, 46.1, 46.2]}
    sound = {"step": [40.0, 40.1, 40.2], "prefill": [1500.0, 1501.0, 1502.0], "decode": [60.0, 60.1, 60.2]}
    times = {"started": STARTED, "clock": CLOCK, "seconds": SECONDS}
    before, after = (
        parsed(merged(rank(gpu="NVIDIA H200", **clock), cells=[cell_record(figures, **times)]))
        for figures, clock in ((sound, {}), (slow, CAPPED))
    )
    causes = compare.compare([before], after).causes
    assert causes["code s1"].startswith("spark-2: a lower clock of the GPU")
    # Evidence of an older toolkit has no samples of that rank.
    older = evidence.parse(text(run_record(**PAIR), cell_record(sound, **times), END), Path("a"))
    assert compare.compare([older], after).causes["code s1"].startswith("spark-2: a lower clock of the GPU")
