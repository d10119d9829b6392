"""Runs of the programs of this folder by the Python of an engine. An identical run is answered from the cache."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import environments

HERE = Path(__file__).parent
# The programs import each other and the platform of a Spark.
PROGRAMS = ("check_argv.py", "describe_parser.py", "judge_flags.py", "spark/*.py")


class EngineError(Exception):
    """Raised if an engine does not start. Its text is the end of stderr."""


def output(version: str, program: str, *args: str, lines: str = "") -> str:
    """Return stdout of a program of this folder. `lines` is its stdin. Raises EngineError."""
    environment = environments.environment(version)
    sources = [file.read_text(encoding="utf-8") for pattern in PROGRAMS for file in sorted(HERE.glob(pattern))]
    requested = json.dumps([environment["PYTHONPATH"], program, args, lines, sources])
    name = f"answer-{version}-{program.removesuffix('.py')}-"
    kept = environments.CACHE / f"{name}{hashlib.sha256(requested.encode()).hexdigest()[:12]}"
    if not kept.exists():
        # -S: of this interpreter only the standard library.
        words = [sys.executable, "-S", str(HERE / program), *args]
        done = subprocess.run(words, input=lines, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(f"vLLM {version}: {done.stderr[-4000:]}")
        for stale in environments.CACHE.glob(f"{name}*"):
            stale.unlink()
        kept.write_text(done.stdout, encoding="utf-8")
    return kept.read_text(encoding="utf-8")
