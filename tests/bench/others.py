"""The decode of one server, measured by vllm-spark bench and by three other tools in turn.

Needs the sandbox's engine image and model (`make bench-others` makes them), and two cores: the engine's worker has one,
and the tools have the other one, because a tool with many processes would slow the engine that it measures. Every step
of the engine takes at least PACE_S seconds (paced_step.py), so that what is left of this noise does not count.
Each tool has an environment of its own with its pinned version below .cache/others; `vllm bench serve` is that of the
image. The tools alternate. Prints medians and ratios of one run. It has no limits and cannot fail because of a figure.
docs/reference/bench-others.md explains the differences.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vllm_spark.bench import evidence, profiles
from vllm_spark.bench.url_run import UrlRun
from vllm_spark.core import paths
from vllm_spark.node.bench.records import Cell

CACHE = paths.ROOT / ".cache" / "others"
STATE = paths.ROOT / ".sandbox"
ENGINE = "/vllm-spark/engine:"
MODEL, PORT, NAME = "tiny-gemma4", 8100, "vllm-spark-bench-others"
ENGINE_CPU, CLIENT_CPU = "0", "1"
READY_S = 180
CORPUS = paths.NODE / "bench" / "corpora" / "chat.txt"
PROMPT, OUTPUT, RUNS = 128, 128, 3
PACE_S = 0.06  # of a step: much longer than the API process and the clients need for a token on two cores
PLUGIN = "paced_step"
TIMEOUT_S = 600

Figures = dict[str, float]  # decode in tok/s, first chunk in ms


@dataclass(frozen=True, slots=True)
class Subject:
    """The server: its URL without /v1, its image, the folder of its tokenizer, and the URL of a text for prompts."""

    url: str
    image: str
    tokenizer: str
    book: str


def run(argv: list[str]) -> str:
    """Return the stdout of a command. Raises ChildProcessError with the end of its output if it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise ChildProcessError(f"{argv[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")
    return done.stdout


def installed(package: str, version: str) -> str:
    """Return the program of a tool in its own environment, which is made the first time."""
    folder = CACHE / f"{package}-{version}"
    program = folder / "bin" / package
    if not program.exists():
        run([sys.executable, "-m", "venv", str(folder)])
        run([str(folder / "bin" / "pip"), "install", "--quiet", f"{package}=={version}"])
    return str(program)


def ours(subject: Subject) -> Figures:
    """Return the figures of vllm-spark bench. The tiny model has no real weights, so garbage is accepted."""
    output = CACHE / "ours.jsonl"
    output.unlink(missing_ok=True)
    profile = profiles.load("smoke", {"least_runs": RUNS, "most_runs": RUNS})
    cell: Cell = {**profile.cells[0], "prompt": PROMPT, "output": OUTPUT}
    bench = UrlRun(subject.url, MODEL, "", replace(profile, cells=(cell,)), output, ("garbage",))
    bench.run(bench.connect(), [cell], lambda _: None)
    found = next(iter(evidence.read(output).cells.values()))["figures"]
    wanted = (("decode", "decode"), ("first chunk", "first_chunk"))
    return {name: found[metric]["median"] for name, metric in wanted if metric in found}


def llama_benchy(subject: Subject) -> Figures:
    """Return the figures of llama-benchy."""
    result = CACHE / "llama-benchy.json"
    argv = [installed("llama-benchy", "0.4.0"), "--base-url", f"{subject.url}/v1", "--model", MODEL]
    argv += ["--tokenizer", subject.tokenizer, "--pp", str(PROMPT), "--tg", str(OUTPUT)]
    argv += ["--exact-tg", "--runs", str(RUNS), "--latency-mode", "none", "--skip-coherence", "--no-cache"]
    run([*argv, "--book-url", subject.book, "--format", "json", "--save-result", str(result)])
    row = json.loads(result.read_text(encoding="utf-8"))["benchmarks"][0]
    first = row.get("ttfr") or row.get("e2e_ttft")
    return {"decode": _median(row["tg_throughput"]), **({"first chunk": _median(first)} if first else {})}


def aiperf(subject: Subject, *options: str) -> Figures:
    """Return the figures of aiperf: one divided by its latency between tokens."""
    folder = CACHE / "aiperf"
    argv = [installed("aiperf", "0.13.0"), "profile", "--model", MODEL, "--url", subject.url]
    argv += ["--endpoint-type", "chat", "--streaming", "--tokenizer", subject.tokenizer, "--concurrency", "1"]
    argv += ["--request-count", str(RUNS), "--warmup-request-count", "1", "--synthetic-input-tokens-mean", str(PROMPT)]
    argv += ["--osl", str(OUTPUT), "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{OUTPUT}"]
    run([*argv, "--extra-inputs", "temperature:0", "--ui", "none", "--artifact-dir", str(folder), *options])
    found = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return {"decode": 1000 / found["inter_token_latency"]["p50"], "first chunk": found["time_to_first_token"]["p50"]}


def vllm_bench_serve(subject: Subject) -> Figures:
    """Return the figures of `vllm bench serve` in a second container: one divided by its time per token."""
    argv = ["docker", "run", "--rm", "--network", "host", "--cpuset-cpus", CLIENT_CPU, *_model(subject.tokenizer)]
    argv += ["--entrypoint", "vllm", subject.image, "bench", "serve", "--backend", "openai-chat"]
    argv += ["--endpoint", "/v1/chat/completions", "--base-url", subject.url, "--model", MODEL, "--tokenizer", "/model"]
    argv += ["--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(OUTPUT)]
    argv += ["--num-prompts", str(RUNS), "--num-warmups", "1", "--max-concurrency", "1", "--ignore-eos"]
    lines = [line.rsplit(":", 1) for line in run([*argv, "--temperature", "0"]).splitlines() if ":" in line]
    values = {name.strip(): value.strip() for name, value in lines}
    return {"decode": 1000 / float(values["Median TPOT (ms)"]), "first chunk": float(values["Median TTFT (ms)"])}


OURS = "vllm-spark bench, decode"
TOOLS: dict[str, Callable[[Subject], Figures]] = {
    OURS: ours,
    "llama-benchy 0.4.0, tg": llama_benchy,
    "vllm bench serve, 1000 / TPOT": vllm_bench_serve,
    "aiperf 0.13.0, 1000 / ITL": aiperf,
    "aiperf with the server's count": lambda subject: aiperf(subject, "--use-server-token-count"),
}


def _median(values: dict[str, Any]) -> float:
    return float(statistics.median(values["values"]))


@contextmanager
def book() -> Iterator[str]:
    """Serve a text to llama-benchy, which loads its prompts from a URL, and yield its address."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "book.txt").write_text(CORPUS.read_text(encoding="utf-8") * 20, encoding="utf-8")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(CACHE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/book.txt"
        server.shutdown()


def readable(model: Path) -> Path:
    """Return a copy of the model's folder without weights, in which every token has a text.

    A model without weights answers with any token, and some tools count those alone that have a text.
    """
    folder = CACHE / "model"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    for token in tokenizer["added_tokens"]:
        token["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    size = 1 + max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"]))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    sizes = {"vocab_size": size, "vocab_size_per_layer_input": size}
    (folder / "config.json").write_text(json.dumps(config | sizes), encoding="utf-8")
    return folder


def plugin() -> list[str]:
    """Return Docker's options that load paced_step.py into the engine."""
    folder = CACHE / "plugin"
    info = folder / f"{PLUGIN}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name(f"{PLUGIN}.py"), folder)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 1.0\n", encoding="utf-8")
    points = f"[vllm.general_plugins]\n{PLUGIN} = {PLUGIN}:register\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    return [*("--env", f"BENCH_PACE_S={PACE_S}", "--env", "PYTHONPATH=/plugin"), "--volume", f"{folder}:/plugin:ro"]


@contextmanager
def engine() -> Iterator[tuple[str, str, str]]:
    """Start the sandbox's engine with paced steps, and yield its URL, its image and the model's folder."""
    images = run(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]).splitlines()
    image = next(name for name in images if ENGINE in name)
    folder = str(readable(next((STATE / "hub").glob("*tiny-gemma4/snapshots/*"))))
    argv = ["docker", "run", "--detach", "--rm", "--name", NAME, "--shm-size", "512m"]
    argv += ["--env", "OMP_NUM_THREADS=1", "--env", f"VLLM_CPU_OMP_THREADS_BIND={ENGINE_CPU}"]
    argv += [*plugin(), *_model(folder)]
    argv += ["--publish", f"127.0.0.1:{PORT}:8000", "--entrypoint", "vllm", image, "serve", "/model"]
    argv += ["--load-format", "dummy", "--served-model-name", MODEL, "--max-model-len", "4096", "--max-num-seqs", "4"]
    # llama-benchy sends no temperature. The sampling of the model's generation_config takes time that the others save.
    argv += ["--generation-config", "vllm", "--override-generation-config", json.dumps({"temperature": 0})]
    run([*argv, "--kv-cache-memory-bytes", "134217728"])
    try:
        url = f"http://127.0.0.1:{PORT}"
        _wait(f"{url}/health")
        yield url, image, folder
    finally:
        run(["docker", "stop", NAME])


def _model(folder: str) -> list[str]:
    return ["--env", "HF_HUB_OFFLINE=1", "--volume", f"{folder}:/model:ro"]


def _wait(url: str) -> None:
    """Return when the URL answers. Raises TimeoutError."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - the engine that this program starts
                return
        except OSError:
            time.sleep(1)
    raise TimeoutError(f"{url} did not answer within {READY_S} s")


def table(measured: dict[str, list[Figures]]) -> str:
    """Return a line per tool: the median of its rounds, their range, and the ratio to the first tool."""
    own = [one["decode"] for one in measured[OURS] if "decode" in one]
    reference = statistics.median(own) if own else float("nan")
    lines = [f"{'tool':<32} {'decode tok/s':>12} {'range':>17} {'ratio':>7} {'first chunk ms':>15}"]
    for name, rounds in measured.items():
        decodes = [one["decode"] for one in rounds if "decode" in one]
        firsts = [one["first chunk"] for one in rounds if "first chunk" in one]
        if not decodes:
            lines.append(f"{name:<32} did not run")
            continue
        middle = statistics.median(decodes)
        spread = f"{min(decodes):.1f} to {max(decodes):.1f}"
        first = f"{statistics.median(firsts):.1f}" if firsts else "not reported"
        lines.append(f"{name:<32} {middle:>12.1f} {spread:>17} {middle / reference:>7.3f} {first:>15}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    measured: dict[str, list[Figures]] = {name: [] for name in TOOLS}
    os.sched_setaffinity(0, {int(CLIENT_CPU)})
    with book() as text, engine() as (url, image, folder):
        subject = Subject(url, image, folder, text)
        for number in range(1, rounds + 1):
            for name, tool in TOOLS.items():
                try:
                    measured[name].append(tool(subject))
                except (ChildProcessError, subprocess.TimeoutExpired, KeyError) as error:
                    print(f"{name}: {error}", file=sys.stderr)
            print(f"round {number} of {rounds}", file=sys.stderr)
    print(table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
