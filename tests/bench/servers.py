"""The bench against scripted servers of every kind: what each did, what the bench reports, and which fault it names.

The network of most is virtual: exact times, whatever this machine does. Those behind real gateways are one process on
the loopback address: HAProxy and nginx (HAPROXY and NGINX name them, or PATH), and LiteLLM (LITELLM). A gateway that is
not there is named. --sockets measures all servers over the loopback address; on a busy machine the figures are then its
own. A measurement whose client was late, by the warning `slow-client`, is repeated TRIES times at most. If it
still is, the figures are those of this machine: the line says so, and how late the client was.
Ends with 1 if a figure is wrong and no fault says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_servers import Outcome, groups, measure, wrong
from fakes import scripted_servers
from fakes.scripted_servers import Script, scripts, truth
from fakes.virtual_network import network
from loopback import held_port
from vllm_spark.node.bench import stream

PROGRAM = Path(scripted_servers.__file__)
GAP_S = 12.0
LIMIT_S = 300
TRIES = 4
LATE, LATE_TEXT = "slow-client", "the client was"
# LiteLLM imports for a minute on two busy cores.
READY_S = 180
# Of the processor: a measurement in virtual time takes a part of a second.
LOOP_S = 20
SHOWN = ("decode", "total", "first_token", "prefill", "longest_gap", "prompt")


@dataclass(frozen=True, slots=True)
class Line:
    """A server's line of the table."""

    script: Script
    outcome: Outcome
    truth: dict[str, float]

    @property
    def wrong(self) -> str:
        return wrong(self.script, self.outcome, self.truth)

    @property
    def judgement(self) -> str:
        if self.wrong:
            return f"**{self.wrong}**"
        late = next((one for one in self.outcome.what.split("; ") if LATE_TEXT in one), "")
        return f"not judged: {late}" if LATE in self.outcome.faults and not self.script.right else "right"

    def text(self) -> str:
        """Return the cells: server, where it is seen, scripted, reported, error or fault, right or wrong."""
        both = [name for name in SHOWN if name in self.truth and name in self.outcome.figures]
        scripted = ", ".join(f"{name} {self.truth[name]:.4g}" for name in both) or "-"
        reported = ", ".join(f"{self.outcome.figures[name]:.4g}" for name in both) or self.outcome.state or "-"
        errors = ", ".join(f"{100 * (self.outcome.figures[name] / self.truth[name] - 1):+.1f} %" for name in both)
        faults = ", ".join(dict.fromkeys(self.outcome.faults))
        found = "; ".join(filter(None, (errors, faults))) or "-"
        cells = (
            self.script.name,
            self.script.source,
            scripted,
            reported,
            found,
            self.judgement,
        )
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


@contextlib.contextmanager
def served(slower: int = 1) -> Iterator[int]:
    """Run the scripted servers as a process and yield their port. `slower` multiplies the times of the scripts."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(PROGRAM), "0", str(slower)], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield int(process.stdout.readline())
        process.stdin.close()


@dataclass(frozen=True, slots=True)
class Gateways:
    """Ports of the gateways that run, and why others do not."""

    ports: dict[str, int]
    missing: dict[str, str]


HAPROXY = """\
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen front
  bind 127.0.0.1:{haproxy}
  option http-no-delay
  server engine 127.0.0.1:{port}
listen delayed
  bind 127.0.0.1:{haproxy-delayed}
  server engine 127.0.0.1:{port}
"""
NGINX = """\
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{nginx}; location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }} }}
  server {{ listen 127.0.0.1:{nginx-buffered}; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}
  server {{ listen 127.0.0.1:{nginx-hsts}; location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off;
    add_header Strict-Transport-Security "max-age=31536000" always; keepalive_timeout 60 60; }} }}
  server {{ listen 127.0.0.1:{nginx-gzip}; gzip on; gzip_types text/event-stream; gzip_proxied any;
    location / {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }} }}
}}
"""


@contextlib.contextmanager
def gateways(port: int, wanted: set[str], folder: Path) -> Iterator[Gateways]:
    """Run the gateways that are there before the servers of `port`."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    found = Gateways({}, {})
    names = ("haproxy", "haproxy-delayed", "nginx", "nginx-buffered", "nginx-hsts", "nginx-gzip", "litellm")
    ports = {name: held_port() for name in names}
    texts = {
        "haproxy": HAPROXY.format(port=port, **ports),
        "nginx": NGINX.format(port=port, folder=folder, **ports),
        "litellm": json.dumps(
            {"model_list": [_model(script, port) for script in scripts().values() if script.through == "litellm"]}
        ),
    }
    with contextlib.ExitStack() as stack:
        for name, text in texts.items():
            program = os.environ.get(name.upper()) or shutil.which(name, path=path)
            mine = [one for one in wanted if one.startswith(name)]
            if not mine:
                continue
            if not program:
                found.missing.update(dict.fromkeys(mine, f"{name} is not in PATH; {name.upper()} may name it"))
                continue
            file = folder / f"{name}.yml"
            file.write_text(text, encoding="utf-8")
            words = {
                "haproxy": [program, "-db", "-f", str(file)],
                "nginx": [program, "-p", str(folder), "-c", str(file), "-e", str(folder / "error.log")],
                "litellm": [program, "--config", str(file), "--port", str(ports["litellm"]), "--host", "127.0.0.1"],
            }[name]
            # On the loopback device, without the internet and without a key.
            own = {
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            }
            environment = {**os.environ, **own}
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
            process = stack.enter_context(subprocess.Popen(words, **quiet))
            stack.callback(process.terminate)
            if _answers(ports[name]):
                found.ports.update({one: ports[one] for one in mine})
            else:
                found.missing.update(dict.fromkeys(mine, f"{name} did not answer within {READY_S} s"))
        yield found


def _model(script: Script, port: int) -> dict[str, object]:
    base = f"http://127.0.0.1:{port}/{script.name}/v1"
    parameters = {"model": "hosted_vllm/scripted", "api_base": base, "api_key": "none"}
    return {"model_name": script.name, "litellm_params": parameters}


def _answers(port: int) -> bool:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/vllm/v1/models", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.5)
    return False


def line(script: Script, port: int, found: Gateways) -> Line:
    """Measure a server by a process of its own and return its line."""
    own = found.ports.get(script.through, port)
    base = f"http://127.0.0.1:{own}" + ("" if script.through == "litellm" else f"/{script.name}")
    outcome = _measured(script, base)
    for _ in range(TRIES - 1):
        if LATE in outcome.faults and not script.rejects:
            outcome = _measured(script, base)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{script.name}/log", timeout=30) as answer:
        log = json.load(answer)
    return Line(script, outcome, truth(groups(log, script)))


def _measured(script: Script, base: str) -> Outcome:
    """Return what the bench says, from a process of its own."""
    words = [sys.executable, __file__, "--one", script.name, "--url", base]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Outcome(crash=f"no end within {LIMIT_S} s")
    return Outcome(**json.loads(done.stdout)) if done.returncode == 0 else Outcome(crash=done.stderr[-200:])


def virtual(script: Script) -> Line:
    """Measure a server without sockets. What takes real time and has no end is stopped."""
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(LOOP_S)
    try:
        with network(script) as wire:
            outcome = measure(script, "http://scripted")
    except _StoppedError:
        outcome = Outcome(crash="no end: a loop")
    finally:
        signal.alarm(0)
    return Line(script, outcome, truth(groups(wire.log, script)))


class _StoppedError(BaseException):
    """A loop that nothing else ends."""


def _stop(_number: int, _frame: object) -> None:
    raise _StoppedError


def one(name: str, url: str) -> int:
    """Measure the server of a script and print what the bench says."""
    stream.GAP_S = GAP_S
    print(json.dumps(measure(scripts()[name], url).to_json()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="servers to measure; all of them without one")
    parser.add_argument("--jobs", type=int, default=3, help="servers that are measured beside each other")
    parser.add_argument("--sockets", action="store_true", help="measure over the loopback address")
    parser.add_argument("--slower", type=int, default=1, help="multiplies the times of those over the loopback address")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return one(given.one, given.url)
    chosen = [scripts()[name] for name in given.names] or list(scripts().values())
    real = [script for script in chosen if script.through or given.sockets]
    lines = [virtual(script) for script in chosen if script not in real]
    missing: dict[str, str] = {}
    if real:
        lines += measured(real, given.jobs, missing, given.slower)
    print("| server | seen at | scripted | reported | error; faults | judgement |\n|---|---|---|---|---|---|")
    for each in lines:
        print(each.text())
    bad = [each for each in lines if each.wrong]
    late = [each for each in lines if each.judgement.startswith("not judged")]
    right = len(lines) - len(bad) - len(late)
    print(f"\n{len(lines)} servers: {right} right, {len(bad)} wrong, {len(late)} not judged: their client was late.")
    for name, why in missing.items():
        print(f"Not run: {name}: {why}.")
    return 1 if bad else 0


def measured(real: Sequence[Script], jobs: int, missing: dict[str, str], slower: int) -> list[Line]:
    """Measure servers over the loopback device, and write into `missing` why a gateway does not run."""
    wanted = {script.through for script in real} - {""}
    with tempfile.TemporaryDirectory() as folder, served(slower) as port, gateways(port, wanted, Path(folder)) as found:
        missing.update(found.missing)
        able = [script for script in real if script.through not in found.missing]
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(lambda script: line(script, port, found), able))


if __name__ == "__main__":
    sys.exit(main())
