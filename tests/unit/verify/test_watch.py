"""Following a start: ready, failed or waiting, and the message at its end."""

from __future__ import annotations

from typing import Any

import pytest

from project_files import DATA
from vllm_spark.doctor.places import Place
from vllm_spark.verify import startup

TOKEN = {"ready": {"status": 200, "json": {"choices": [{"text": "1"}]}, "seconds": 0.1}}
REFUSED = {"ready": {"error": "ConnectionRefusedError", "seconds": 0.0}}
NO_MEMORY = DATA / "engine-logs" / "31b-nvfp4.not-enough-free-memory.serve.log"
PLACE = Place("spark1", "demo", ("spark1",))
BAD_FLAG = "vllm serve: error: unrecognized arguments: --swap-space 4"


def probe(failed: int = 0, state: str = "loading", **changes: Any) -> dict[str, Any]:
    unit = {"ActiveState": "active"} | changes.pop("unit", {})
    said = {"state": state, "failed": failed}
    return {"unit": unit, "state": said, "running_s": 10.0, "lines": [], "responses": REFUSED} | changes


# probes in their order, and the state after each
STORIES = {
    "ready at once": [(probe(responses=TOKEN), "ready")],
    "loads, then serves": [(probe(), "waiting"), (probe(running_s=50.0), "waiting"), (probe(responses=TOKEN), "ready")],
    "never started": [(probe(unit={"ActiveState": "inactive"}), "failed")],
    "gave up": [(probe(), "waiting"), (probe(unit={"ActiveState": "failed"}), "failed")],
    # The supervisor of a pair stays.
    "a pair gave up": [(probe(), "waiting"), (probe(5, "gave up"), "failed")],
    "an end from outside is no failure": [(probe(), "waiting"), (probe(state="wanted"), "waiting")],
    "a deploy has begun a new count": [(probe(4), "waiting"), (probe(0), "waiting"), (probe(1), "waiting")],
    "known cause, first exit": [
        (probe(), "waiting"),
        (probe(failed=1, lines=[BAD_FLAG]), "failed"),
    ],
    "unknown cause, second try serves": [
        (probe(), "waiting"),
        (probe(failed=1, lines=["RuntimeError: something odd"]), "waiting"),
        (probe(failed=1, responses=TOKEN), "ready"),
    ],
    "unknown cause, twice": [
        (probe(), "waiting"),
        (probe(failed=1, lines=["RuntimeError: something odd"]), "waiting"),
        (probe(failed=2), "failed"),
    ],
    "a rank that ended with its peer, and waits for it": [
        (probe(), "waiting"),
        (
            probe(
                failed=1,
                lines=[
                    "vllm-spark: ending rank 0: its container ended with status 1",
                    "vllm-spark: waiting for spark2 to connect to 10.0.0.1:25000",
                ],
            ),
            "waiting",
        ),
        (probe(failed=1, responses=TOKEN), "ready"),
    ],
    "failures of last week do not count": [(probe(failed=7), "waiting")],
}


@pytest.mark.parametrize("name", STORIES)
def test_a_start(name: str) -> None:
    watch = startup.StartupWatch(deadline_s=60)
    assert [watch.add(look) for look, _ in STORIES[name]] == [state for _, state in STORIES[name]]


SLOW = "the start of rank 1 failed: Exception: The current node timed out during startup"


def test_while_starts_fail_the_lines_do_not_say_that_one_is_under_way() -> None:
    watch = startup.StartupWatch(deadline_s=300)
    watch.add(probe())
    assert watch.headline() == "starting  00:10 of 05:00"
    # Ray's own limit: the same start goes on.
    watch.add(probe(lines=[f"vllm-spark: {SLOW}; second try"]))
    assert watch.news == [f"{SLOW}; second try"]
    assert watch.headline() == "second try: starting  00:10 of 05:00"
    watch.add(probe())
    assert watch.news == []
    watch.add(probe(1, "failed", lines=["vllm-spark: the start failed: status 1; it starts again"]))
    assert watch.news == ["the start failed: status 1; it starts again"]
    assert watch.headline() == "the start has failed, and begins again (third try)"
    watch.add(probe(1))
    assert watch.headline().startswith("third try: starting ")


def test_what_was_only_slow_is_no_fault_of_the_recipe() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    watch.add(probe(running_s=61.0))
    for slow in (
        startup.overdue(watch, "vllm@d.service", "spark1"),
        startup.failure(startup.StartupWatch(60, lines=[SLOW]), "vllm@d.service", PLACE),
    ):
        assert "the same command again" in str(slow)
        said = startup.next_step(str(slow), "correct the recipe.")
        assert said == "if the machine was busy, the same command again; otherwise correct the recipe."
    assert startup.next_step(BAD_FLAG, "correct the recipe.") == "correct the recipe."


def test_a_failure_names_the_root_cause_and_the_log() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    watch.add(probe(lines=[BAD_FLAG]))
    message = str(startup.failure(watch, "vllm@demo.service", PLACE))
    assert "--swap-space" in message
    assert " Fix: " in message
    assert message.endswith("Log: ssh -t spark1 sudo journalctl -u vllm@demo.service -e")


def test_a_failure_without_a_log_names_the_command() -> None:
    assert "deploy.yml -l spark1" in str(startup.failure(startup.StartupWatch(60), "vllm@demo.service", PLACE))


def test_an_exceeded_deadline_names_the_phase() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    line = "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.2s/it]"
    watch.add(probe(lines=[line], running_s=61.0))
    message = "gave no token within 60 s; it was loading weights 50 %"
    assert message in str(startup.overdue(watch, "vllm@d.service", "spark1"))


# A head and a worker of vLLM 0.32 over Ray: what the supervisor and the engine print about the other rank's end.
LOST = """\
(EngineCore pid=686) ERROR 11-25 20:11:02 [ray_executor_v2.py:522] RayWorkerProc rank=1 died unexpectedly, shutting down
(EngineCore pid=686) Traceback (most recent call last):
(EngineCore pid=686)   File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1180, in step
(EngineCore pid=686) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
vllm-spark: ending rank 0: spark2 is lost: its container ended with status 1 (rank 1)"""
BLOCK_SIZE = """\
(Worker pid=301) ERROR 11-25 21:12:38 [worker.py:900] Traceback (most recent call last):
(Worker pid=301) ERROR 11-25 21:12:38 [worker.py:900]   File "/opt/vllm/v1/worker/utils.py", line 395, \
in select_common_block_size
(Worker pid=301) ERROR 11-25 21:12:38 [worker.py:900]     raise ValueError(f"No common block size for {size}. ")
(Worker pid=301) ERROR 11-25 21:12:38 [worker.py:900] ValueError: No common block size for 7777.
(EngineCore pid=228) ERROR 11-25 21:12:40 [multiproc_executor.py:273] Worker proc VllmWorker-0 died unexpectedly
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
vllm-spark: ending rank 1: its container ended with status 1"""


def failed(host: str, *lines: str) -> dict[str, Any]:
    watch = startup.StartupWatch(deadline_s=60, lines=list(lines))
    error = startup.failure(watch, "vllm@big.service", Place(host, "big", ("spark1", "spark2")))
    return {"holds": False, "missed": str(error), "remoteness": error.remoteness}


def test_a_lost_worker_is_no_cause_beside_an_exception_of_the_same_log() -> None:
    assert "No common block size for 7777" in failed("spark1", *BLOCK_SIZE.splitlines())["missed"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (BLOCK_SIZE.splitlines(), "No common block size for 7777"),
        (NO_MEMORY.read_text().splitlines(), "only 16.72 of 139.8 GiB were free"),
    ],
)
def test_a_pair_fails_with_the_cause_of_whichever_rank_has_it(other: list[str], words: str) -> None:
    head, worker = failed("spark1", *LOST.splitlines()), failed("spark2", *other)
    assert words not in head["missed"]
    for results in ({"spark1": head, "spark2": worker}, {"spark2": worker, "spark1": head}):
        causes = startup.first_causes(results)
        assert causes["spark1"] == causes["spark2"]
        assert words in causes["spark1"]
        assert "Log: ssh -t spark2 " in causes["spark1"]


def test_ranks_without_a_cause_keep_their_own_messages() -> None:
    head, worker = failed("spark1", *LOST.splitlines()), failed("spark2", "vllm-spark: ending rank 1: it was stopped")
    missed = {"spark1": head["missed"], "spark2": worker["missed"]}
    assert startup.first_causes({"spark1": head, "spark2": worker}) == missed
    held = {"holds": True, "missed": ""}
    assert startup.first_causes({"spark1": head, "spark2": held}) == {"spark1": head["missed"], "spark2": ""}


def test_a_watch_keeps_a_bounded_number_of_lines() -> None:
    watch = startup.StartupWatch(deadline_s=60)
    for _ in range(3):
        watch.add(probe(lines=["x"] * startup.KEPT_LINES))
    assert len(watch.lines) == startup.KEPT_LINES
