"""What the doctor reads: carriers, encodings, compressed and binary files, tails of logs, and its exit status."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

import doctor_corpus as corpus
from vllm_spark.cli import main
from vllm_spark.doctor import command, wraps
from vllm_spark.doctor.diagnosis import judge, root_cause
from vllm_spark.doctor.findings import UNRECOGNISED

TAIL = [
    '(EngineCore pid=9)   File "vllm/v1/engine/core.py", line 9, in step',
    "(EngineCore pid=9)     self.run()",
    "(EngineCore pid=9) quant.ScaleError: scale of layer 7 is not finite",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
]
CAUSE = "quant.ScaleError: scale of layer 7 is not finite"
BUILD = "(APIServer pid=1) WARNING 06-11 10:00:00 [envs.py:2057] Unknown vLLM environment variable detected: "


def run(file: Path) -> int:
    return main.main(["doctor", str(file)])


def first_line(file: Path) -> str:
    judgement = judge([command.read(str(file))])
    return next(iter([*judgement.findings, *judgement.unrecognised])).line


@pytest.mark.parametrize(
    "carrier",
    [
        "{}",
        "2026-08-01T10:00:0{n}.123456789Z {}",
        "vllm-0 engine {}",
        "2026-08-01 10:00:0{n} spark1 vllm[12]: {}",
        "[2026-08-01 10:00:0{n}] {}",
        "10:00:0{n} {}",
        "2026-08-01 10:00:0{n}.890 | {}",
        "… | {}",
        "<13>1 host42 app - {}",
        "\x1b[0;36m{}\x1b[0m",
    ],
)
def test_an_exception_without_its_header_behind_any_carrier(carrier: str, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(carrier.replace("{n}", str(n)).format(line) + "\n" for n, line in enumerate(TAIL)))
    assert first_line(file) == CAUSE


@pytest.mark.parametrize(
    "entry",
    [
        lambda line: {"MESSAGE": line, "_PID": "9", "PRIORITY": "6"},
        lambda line: {"MESSAGE": list(line.encode()), "_PID": "9"},
        lambda line: {"level": "error", "ts": 1.5, "msg": line},
        lambda line: {"log": line + "\n", "stream": "stderr"},
    ],
)
def test_json_loggers(entry: object, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(json.dumps(entry(line)) + "\n" for line in TAIL))  # type: ignore[operator]
    assert first_line(file) == CAUSE


def test_a_traceback_within_one_json_message(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(json.dumps({"level": "error", "message": "Traceback (most recent call last):\n" + CAUSE}) + "\n")
    assert first_line(file) == CAUSE


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress("\n".join(TAIL).encode()),
        "\n".join(TAIL).encode("utf-16"),
        b"\xfe\xff" + "\n".join(TAIL).encode("utf-16-be"),
        "\n".join(TAIL).encode("utf-16-le"),
        "\r".join(TAIL).encode(),
        "\r\n".join(TAIL).encode("utf-8-sig"),
        b"\x00" * 5000 + b"\n" + "\n".join(TAIL).encode(),
        gzip.compress("\n".join(TAIL).encode("utf-16")),
    ],
    ids=["gzip", "UTF-16", "UTF-16-BE", "UTF-16 without its mark", "CR", "BOM", "NUL after a crash", "both"],
)
def test_encodings(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(data)
    assert first_line(file) == CAUSE


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"LPKSHHRH" + bytes(range(256)) * 9, "journal file of systemd"),
        (b"PK\x03\x04" + bytes(range(256)) * 9, "zip archive"),
        (b"\x7fELF" + bytes(range(256)) * 9, "not characters of a text"),
        (b"\x00" * 3000, "only NUL bytes"),
        (gzip.compress(b"line\n" * 90000)[:300], "not a complete gzip file"),
    ],
)
def test_binary_input_is_refused(data: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(data)
    assert run(file) == command.UNREADABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert str(file) in printed.err
    assert "Fix: " in printed.err


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("INFO 06-11 10:00:00 [a.py:1] calm", command.UNKNOWN),
        (
            "".join(f"{BUILD}VLLM_{name}\n" for name in ("BUILD_COMMIT", "BUILD_PIPELINE", "BUILD_URL", "IMAGE_TAG")),
            command.UNKNOWN,
        ),
        (
            "".join(
                f"{BUILD}VLLM_{name}\n"
                for name in ("VERSION", "BASE_DIR", "FLASH_ATTN_SRC_DIR", "PRECOMPILED_WHEEL_COMMIT")
            ),
            command.UNKNOWN,
        ),
        (f"{BUILD}VLLM_VERSIONS", command.WARNINGS),
        (f"{BUILD}VLLM_ATTENTION_BACKEND", command.WARNINGS),
        ("gemma3:27b  a418  22 GB  66%/34% CPU/GPU  4 minutes from now", command.WARNINGS),
        ("gemma3:27b  a418  22 GB  100% GPU  4 minutes from now", command.UNKNOWN),
        ("load_tensors: offloaded 34/63 layers to GPU", command.WARNINGS),
        ("load_tensors: offloaded 63/63 layers to GPU", command.UNKNOWN),
        ("OSError: [Errno 98] Address already in use", command.FAILURE),
        ("RuntimeError: Engine core initialization failed. See root cause above.", command.FAILURE),
        ("vllm@a.service: Main process exited, code=exited, status=1/FAILURE", command.FAILURE),
        ("vllm@a.service: Main process exited, code=exited, status=143/n/a", command.UNKNOWN),
        ("Segmentation fault (core dumped)", command.FAILURE),
        ("container exited with code 3", command.FAILURE),
        ('loc("a.mlir":1:2): error: unknown op', command.FAILURE),
        ("a.cu(3): error: expected a type", command.FAILURE),
        ("usage: serve [-h]\nerror: the port must be a number", command.FAILURE),
        ("vllm serve: error: argument --port: invalid int value: 'a'", command.FAILURE),
    ],
)
def test_exit_status(text: str, status: int, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(text + "\n")
    assert run(file) == status


def test_fatal_findings_are_printed_before_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.log"
    file.write_text("\n".join([f"{BUILD}VLLM_ATTENTION_BACKEND", *TAIL]))
    assert run(file) == command.FAILURE
    output = capsys.readouterr().out
    assert output.index(CAUSE) < output.index("VLLM_ATTENTION_BACKEND")


def test_the_second_line_of_a_message_is_kept() -> None:
    finding = root_cause(["quant.ScaleError: scale of layer 7:", "  / 700 (SCALE_IS_NOT_FINITE)"])
    assert finding is not None
    assert (finding.signature, finding.line[-25:]) == (UNRECOGNISED, " 700 (SCALE_IS_NOT_FINITE)"[-25:])


def test_a_server_that_recovered_is_clean(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(
        "vllm@a.service: Main process exited, code=exited, status=1/FAILURE\n"
        "(APIServer pid=3) INFO:     Application startup complete.\n"
    )
    assert run(file) == 0


@pytest.mark.parametrize(
    ("line", "signature", "words"),
    [
        ("KeyError: 'layers.0.mlp.down_proj.weight_scale'", "dense-scale-names", "args.quantization: fp8"),
        ("KeyError: 'layers.0.moe.experts.0.gate_proj.input_scale'", "expert-names", "newer vLLM"),
        (
            "ValueError: Selected backend AttentionBackendEnum.FLASHINFER is not valid for this configuration. "
            "Reason: ['kv_cache_dtype not supported']",
            "attention-backend-unfit",
            "remove kv-cache-dtype",
        ),
        (
            "a:1:2 [0] NCCL WARN NET/IB: Got completion from peer 10.77.0.2<1> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=0 localGid fe80::a remoteGid fe80::b",
            "nccl-retries-exceeded",
            "remove NCCL_IB_GID_INDEX",
        ),
        ("RuntimeError: [FP4 gemm Runner] Failed to run cutlass FP4 gemm on sm120", "fp4-gemm-fails", "linear-backend"),
        ("RuntimeError: a/cutlass_gemm_caller.cuh:61, Error Internal", "fp8-gemm-fails", "VLLM_DISABLED_KERNELS"),
        ("RuntimeError: unsupported PTX", "ptx-unsupported", "linear-backend"),
    ],
)
def test_a_fix_depends_on_what_was_captured(line: str, signature: str, words: str) -> None:
    finding = root_cause([line])
    assert finding is not None
    assert finding.signature == signature
    assert words in finding.fix


CASES = [case for case in corpus.cases() if case.own][::12]  # every log takes a tenth of a second
FAILED = 'fatal: [spark1]: FAILED! => {{"changed": true, "msg": "non-zero return code", "rc": 1, "stderr": {}}}'
CARRIERS = {
    "80 columns": lambda text: fold(text, 80),
    "Ansible": lambda text: f"TASK [Start]\n{FAILED.format(json.dumps(text))}\nPLAY RECAP\n",
}


def fold(text: str, width: int) -> str:
    """Return text with every line cut at a width, as a terminal does."""
    return "".join(
        line[place : place + width] + "\n" for line in text.splitlines() for place in range(0, max(len(line), 1), width)
    )


@cache
def first_id(file: Path) -> str:
    judgement = judge([command.read(str(file))])
    fatal = [finding for finding in judgement.findings if finding.severity != "warning"]
    return next((finding.signature for finding in (*fatal, *judgement.unrecognised)), "")


@pytest.mark.slow
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_carrier_of_many_lines_changes_no_cause(case: corpus.Case, carrier: str, tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(CARRIERS[carrier](gzip.decompress(case.file.read_bytes()).decode(errors="replace")))
    assert first_id(file) == first_id(case.file)


@pytest.mark.parametrize(
    "lines",
    [
        ["x" * 90, "(Worker pid=1) INFO a", "x" * 90, "(Worker pid=1) INFO b", "x" * 90, "(Worker pid=1) INFO c"],
        ["Traceback (most recent call last):", '  File "a.py", line 1, in a', "    b()", "ValueError: 3 is odd"],
        [f"line {number} of a calm log" for number in range(20)],
        ["a" * 70, "b" * 75, "c" * 79],
    ],
)
def test_lines_that_nobody_cut_stay(lines: list[str]) -> None:
    assert wraps.width(lines) == 0
