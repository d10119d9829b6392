"""One verification of one rank: wait until it serves, then judge its gates, round by round.

The caller supplies the probe of the host and prints the lines. All times are in seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core.pace import Pace
from vllm_spark.doctor.places import Place
from vllm_spark.verify import runner, startup
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.runner import Round
from vllm_spark.verify.verdict import Verdict, any_failed

# Long enough that a probe costs a loading host nothing, short enough to see a phase pass.
POLL_INTERVAL_S = 2.0
# A line is printed at least this often, so that silence means trouble.
LOG_INTERVAL_S = 30.0


@dataclass(slots=True)
class Verification:
    """`place` is where the rank runs. `probe` sends the requests of a round and returns the probe, with the log lines
    after a journal cursor. `say` prints a line. `sleep` waits. If `brief`, the gates that pass share one line at the
    end, and a round is announced only after a silence. `thorough` is that of runner.rounds."""

    request: GateRequest
    place: Place
    probe: Callable[[Round, str], Probe]
    say: Callable[[str], None]
    watch: startup.StartupWatch
    sleep: Callable[[float], None] = time.sleep
    brief: bool = False
    thorough: bool = True
    _printed_at: float = field(default=0.0, init=False)

    def run(self, *, wait: bool) -> tuple[list[Verdict], dict[str, Any]]:
        """Return (the verdicts, each printed as soon as it is known; the state of the unit's run).

        Without `wait`, the present state is judged. Raises startup.NotServingError if the start fails or takes longer
        than its deadline.
        """
        started = self._printed_at = time.monotonic()
        first, *others = runner.rounds(self.request, thorough=self.thorough)
        probe = self._wait(first) if wait else self._read(first)
        run = {
            "waited_s": round(time.monotonic() - started, 1),
            "running_s": round(probe["running_s"], 1),
            "restarts": self.watch.tries - 1,
        }
        verdicts = self._judge(first, probe)
        for round_ in others:
            if any_failed(verdicts):
                break
            if round_.requests and (not self.brief or self._silent()):
                self._say(f"… {round_.name}: {len(round_.requests)} requests")
            probe = self.probe(round_, probe["cursor"]) if wait or probe["cursor"] else self._read(round_)
            verdicts += self._judge(round_, probe)
        if self.brief and (passed := [verdict for verdict in verdicts if verdict.ok]):
            self._say(together(passed))
        return verdicts, run

    def _say(self, line: str) -> None:
        self.say(line)
        self._printed_at = time.monotonic()

    def _silent(self) -> bool:
        return time.monotonic() - self._printed_at >= LOG_INTERVAL_S

    def _read(self, round_: Round) -> Probe:
        """Probe with the whole log of the unit's run."""
        probe = self.probe(round_, "")
        self.watch.lines = list(probe["lines"])
        return probe

    def _judge(self, round_: Round, probe: Probe) -> list[Verdict]:
        verdicts = round_.judge(self.request, probe, self.watch.lines)
        for verdict in verdicts:
            if not (self.brief and verdict.ok):
                self._say(verdict.headline())
        return verdicts

    def _wait(self, first: Round) -> Probe:
        pace, cursor = Pace(begin_s=0, most_s=LOG_INTERVAL_S), ""
        while True:
            probe = self.probe(first, cursor)
            cursor = probe["cursor"]
            state = self.watch.add(probe)
            for text in self.watch.news:
                self._say(text)
            # After a definite refusal the gate `ready` quotes it.
            if state in {"ready", "refused"}:
                return probe
            if state == "failed":
                raise startup.failure(self.watch, self.request.unit, self.place)
            if self.watch.elapsed_s > self.watch.deadline_s:
                raise startup.overdue(self.watch, self.request.unit, self.place.host)
            if pace.due(f"{self.watch.tries} {self.watch.progress.phase}", time.monotonic()):
                self._say(self.watch.headline())
            self.sleep(POLL_INTERVAL_S)


def together(passed: list[Verdict]) -> str:
    """Return one line for gates that pass."""
    names = ", ".join(dict.fromkeys(verdict.gate for verdict in passed))
    return f"✓ {len(passed)} {'gate passes' if len(passed) == 1 else 'gates pass'}: {names}"
