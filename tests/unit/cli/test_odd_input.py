"""Input of another shape, and numbers beyond any Spark: a line, and no traceback."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from fakes.cases import resolved
from vllm_spark.cli import main
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory.spec import Inventory


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


def test_ctrl_c_is_a_status_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "parse", lambda _: Namespace(run=interrupted))
    assert main.main(["bench", "http://127.0.0.1:1"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("value", ["{", "[a", "{a: 1}}"])
def test_variables_that_are_no_yaml(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["up", "-e", value])
    assert f"-e {value}: " in (said := capsys.readouterr().err)
    assert "— expected: YAML or JSON. Fix: -e NAME=VALUE" in said


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--streams", "10000000"),
        ("--context", "1000000000000"),
        ("--sparks", "0"),
        ("--sparks", "9"),
        ("--sparks", "four"),
        ("--fabric", "star"),
        ("--gbps", "0"),
    ],
)
def test_values_beyond_any_spark(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["plan", "gpt-oss-120b", option, value])
    assert ended.value.code == main.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"vllm-spark plan: argument {option}: ")
    assert value in line
    assert line.endswith(" — expected: what its help shows. Fix: vllm-spark plan --help")


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
