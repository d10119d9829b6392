"""A site on the loopback device whose figures are recorded: the distribution's Prometheus, Alertmanager and
node-exporter with the commands of their units, a real edge, the program of the figures, and an engine that says what a
real one has said.

The clock of the rules is a test's: a second where a Spark has fifteen."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import command, running

from fakes import edge_cases
from fakes.running_edge import Engines, RunningEdge
from fakes.scripted_engine import ScriptedEngine
from loopback import ADDRESS, held_port
from vllm_spark.core import paths
from vllm_spark.edge import recorder
from vllm_spark.node import host_layout
from waiting import until

ENGINE = paths.ROOT / "tests" / "data" / "metrics" / "engine.prom"
SPARK = ENGINE.with_name("spark.prom")
GROWS = re.compile(r"\w+:\w+_(?:total|bucket|sum|count)\b")
TICK_S = 0.2


def recorded() -> dict[str, float]:
    """Return the lines of the engine: series -> value."""
    lines = [line for line in ENGINE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


@dataclass
class Site:
    """The programs of one Spark that records its own figures."""

    folder: Path
    figures: str = ""
    stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.ports = {name: held_port() for name in ("exporter", "prometheus", "alerts", "metrics")}
        self.run = self.folder / "figures"
        self.run.mkdir()
        self.figures = SPARK.read_text(encoding="utf-8")
        self.state("serving")
        self.engine = ScriptedEngine([], counters=recorded())
        self.engines = Engines(self.folder / "run")
        settings = {"metrics_from": ["127.0.0.0/8"], "metrics_server": "spark1", "metrics_port": self.ports["metrics"]}
        planned = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False, **settings})
        at = {name: f"{ADDRESS}:{self.ports[name]}" for name in ("exporter", "prometheus")}
        self.edge = RunningEdge(planned, self.folder, **at)
        self.stalls, self.ends = threading.Event(), threading.Event()

    def state(self, word: str) -> None:
        """Let the deployment have a state, as the program of the figures writes it."""
        text = re.sub(r'(state="[^"]*"\}) 1$', r"\1 0", self.figures, flags=re.MULTILINE).replace(
            f'state="{word}"}} 0', f'state="{word}"}} 1'
        )
        (self.run / "half").write_text(text, encoding="utf-8")
        (self.run / "half").rename(self.run / "spark.prom")

    def start(self) -> None:
        self.engines.start("demo", self.engine)
        self.stack.callback(self.engines.close)
        self.edge.start()
        self.stack.callback(self.edge.close)
        growing = threading.Thread(target=self._grow, daemon=True)
        growing.start()
        self.stack.callback(self.ends.set)
        self.edge.wait_for("demo", "UP")
        self.stack.enter_context(self.program(host_layout.METRICS_EXPORTER))
        self.stack.enter_context(self.program(host_layout.METRICS_ALERTS))
        self.recorder = self.stack.enter_context(self.program(host_layout.METRICS_PROMETHEUS))
        until(lambda: self.query("watch:tokens_per_second"))

    def _grow(self) -> None:
        base = {series: value for series, value in self.engine.counters.items() if GROWS.match(series)}
        tick = 0
        while not self.ends.wait(TICK_S):
            if not self.stalls.is_set():
                tick += 1
                self.engine.counters.update({series: value * (1 + 0.05 * tick) for series, value in base.items()})

    @contextmanager
    def program(self, unit: str) -> Iterator[Any]:
        """Run the command of a unit with the ports and folders of this site."""
        places = {
            "127.0.0.1:25095": f"{ADDRESS}:{self.ports['exporter']}",
            "127.0.0.1:25096": f"{ADDRESS}:{self.ports['prometheus']}",
            "127.0.0.1:25097": f"{ADDRESS}:{self.ports['alerts']}",
            "/run/vllm-metrics": str(self.run),
            "/etc/vllm-spark/metrics-prometheus.yml": str(self._configuration()),
            "/etc/vllm-spark/metrics-alertmanager.yml": str(paths.TEMPLATES / "metrics-alertmanager.yml"),
            "/var/lib/vllm-spark/metrics": str(self.folder),
            "/usr/local/lib/vllm-spark/watch": str(self._page()),
            "${DAYS}": "1",
            "${GIB}": "1",
        }
        words = command(unit)
        for place, own in places.items():
            words = [word.replace(place, own) for word in words]
        with running(words, self.folder) as process:
            yield process

    def _configuration(self) -> Path:
        for name in ("alerts", "watch"):
            rules = (paths.TEMPLATES / f"metrics-{name}.yml").read_text(encoding="utf-8")
            (self.folder / f"metrics-{name}.yml").write_text(re.sub(r"for: \S+", "for: 1s", rules), encoding="utf-8")
        places = {
            "rules": f"{self.folder}/metrics-*.yml",
            "authority": str(self.folder / "ca.crt"),
            "alerts": f"{ADDRESS}:{self.ports['alerts']}",
        }
        text = recorder.prometheus(self.edge.planned, ADDRESS, places)
        file = self.folder / "prometheus.yml"
        file.write_text(
            re.sub(r"(?<=interval: )15s", "1s", text).replace("timeout: 10s", "timeout: 1s"), encoding="utf-8"
        )
        return file

    def _page(self) -> Path:
        folder = self.folder / "watch"
        folder.mkdir(exist_ok=True)
        (folder / "page.html").write_bytes((paths.TEMPLATES / "metrics-page.html").read_bytes())
        return folder

    def get(self, name: str, path: str) -> Any:
        """Return the answer of Prometheus or Alertmanager."""
        with urllib.request.urlopen(f"http://{ADDRESS}:{self.ports[name]}{path}", timeout=20) as answer:
            return json.load(answer)

    def query(self, text: str) -> list[dict[str, Any]]:
        """Return the series of a query now; none while Prometheus starts."""
        try:
            return list(
                self.get("prometheus", f"/api/v1/query?{urllib.parse.urlencode({'query': text})}")["data"]["result"]
            )
        except OSError:
            return []
