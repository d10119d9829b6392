"""Input of another shape, closed standard streams, and numbers beyond any Spark: a line, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes.cases import resolved
from vllm_spark.cli import main
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Inventory

RUN = [sys.executable, "-m", "vllm_spark.cli.main"]


@pytest.mark.parametrize(
    "content",
    [
        b"{}", b"[]", b"1", b"null", b'"a"', b"\xff\xfe", b"{", b'{"verdicts": 1}', b'{"verdicts": [1]}',
        b'{"verdicts": [{}]}', b'{"verdicts": [], "closing": "", "host": "a"}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_file_that_is_no_report(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    assert main.main(["report", str(file)]) == 1
    assert "Fix: vllm-spark report" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["recipes"], ["render", "gpt-oss-120b"], ["plan", "gpt-oss-120b"], ["--help"]])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(argv: Sequence[str], closed: str) -> None:
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *RUN, *argv]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_the_doctor_of_a_closed_input_has_read_nothing() -> None:
    shell = ["sh", "-c", '"$@" <&-', "sh", *RUN, "doctor", "-"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert "0 lines of 1 log, so nothing was read" in done.stdout


def test_ctrl_c_is_a_status_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "parse", lambda _: Namespace(run=interrupted))
    assert main.main(["bench", "http://127.0.0.1:1"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_ends_early() -> None:
    shell = ["sh", "-c", '"$@" | head -1', "sh", *RUN, "recipes"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_terminal_that_knows_ascii_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", *RUN[1:], "plan", "gpt-oss-120b"],
        env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"\\xb1" in done.stdout


def test_an_output_without_room() -> None:
    shell = ["sh", "-c", '"$@" > /dev/full', "sh", *RUN, "recipes"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device — expected: room for what it writes. Fix: " in done.stderr


@pytest.mark.parametrize("value", ["{", "[a", "{a: 1}}"])
def test_variables_that_are_no_yaml(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["up", "-e", value])
    assert f"-e {value}: " in (said := capsys.readouterr().err)
    assert "— expected: YAML or JSON. Fix: -e NAME=VALUE" in said


@pytest.mark.parametrize(("option", "value"), [("--streams", "10000000"), ("--context", "1000000000000")])
def test_numbers_beyond_any_spark(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["plan", "gpt-oss-120b", option, value])
    assert value in capsys.readouterr().err


def test_names_of_hosts_that_yaml_reads_as_numbers() -> None:
    args = dict.fromkeys(("recipe_folders", "accepted", "deployments", "secrets"), ())
    told = Inventory.from_args({**args, "sparks": [1, 2], "limit": [1], "lock_file": "", "site": {}, "secrets": {}})
    assert (told.sparks, told.limit) == (("1", "2"), ("1",))


def test_a_name_of_a_secret_that_yaml_reads_as_a_boolean() -> None:
    args = dict.fromkeys(("sparks", "limit", "recipe_folders", "accepted", "deployments"), ())
    secrets = Inventory.from_args({**args, "lock_file": "", "site": {}, "secrets": {True: "x", "A": ""}}).secrets
    assert secrets == {"True (bool)": True, "A": False}
    with pytest.raises(RefusedError, match=r"vllm_secrets has the name 'True \(bool\)'"):
        resolved({"secrets": secrets}, "spark1")
