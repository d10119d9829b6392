"""The program that holds the forecast against a file of public rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.forecast import public_rows, rows_of_file


def row(name: str, **changes: Any) -> dict[str, Any]:
    """Return a row as a collector of public figures writes it."""
    return {
        "id": name,
        "configuration": "granite|bf16|tp1n1|none",
        "model": "ibm-granite/granite-4.1-8b",
        "architecture": "granite-4.1-8b",
        "layout": "bf16",
        "kv": "fp8",
        "engine": "vllm 0.26.0",
        "tensor_parallel": 1,
        "nodes": 1,
        "streams": 1,
        "prompt": 2048,
        "depth": 0,
        "output": 256,
        "drafter": {"kind": "none"},
        "measured": {"decode_tok_s_per_stream": 12.5, "ttft_ms": 520.0},
        "protocol": "x1",
        "flags": "f1",
        "hardware": "GB10",
        "source": "owner/name@0123456789ab:file.md",
        **changes,
    }


DRAFTED = {
    "drafter": {"kind": "mtp", "drafted": 2},
    "architecture": "qwen3.6-27b",
    "layout": "fp8",
    "model": "Qwen/Qwen3.6-27B-FP8",
}

# name -> changes of the row, reason for which it is dropped
DROPPED = {
    "fork": ({"engine": "vllm 0.25 (a fork)"}, "an engine with kernels of its own (fork)"),
    "h200": ({"hardware": "H200"}, "more than two Sparks, or another hardware or division"),
    "four": ({"tensor_parallel": 4, "nodes": 4}, "more than two Sparks, or another hardware or division"),
    "unknown": ({"architecture": "nobody-7b"}, "the architecture or the layout is not known here"),
    "width": ({"layout": "exotic 3 bit"}, "the architecture or the layout is not known here"),
    "drafter": (DRAFTED, "a drafter whose dimensions or whose acceptance is not stated"),
    "empty": ({"measured": {}}, "no number of streams, or nothing measured"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [row("kept"), *(row(name, **changes) for name, (changes, _) in DROPPED.items())]
    content = {
        "protocols": {"x1": "closed loop, 3 runs"},
        "flags": {"f1": "--max-num-batched-tokens 4096"},
        "rows": rows,
    }
    target = tmp_path / "rows.yml"
    target.write_text(yaml.safe_dump(content))
    return target


def test_a_row_is_predicted_or_dropped_with_its_reason(file: Path) -> None:
    (kept,), dropped = public_rows.read(file)
    assert kept.batched == 4096
    assert kept.kv == "fp8"
    assert kept.source == "owner/name@0123456789ab"
    assert kept.served(kept.rows[0]).decode == pytest.approx(12.5, rel=0.06)
    found = {name: reason for reason, names in dropped.items() for name in names}
    assert found == {name: reason for name, (_, reason) in DROPPED.items()}


@pytest.mark.slow
def test_the_program_prints_fitted_and_held_back_rows_apart(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rows_of_file.py", str(file), "--rows"])
    rows_of_file.main()
    text = capsys.readouterr().out
    fitted, held_back = text.index("\nfitted\n"), text.index("\nheld back, rows.yml\n")
    assert fitted < held_back
    assert "granite-4-1" in text[held_back:]
    assert "two Sparks, by streams" in text
