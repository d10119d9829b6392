"""Untrusted text in messages."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from vllm_spark.core import text
from vllm_spark.doctor import command, diagnosis
from vllm_spark.doctor.log import Log


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("plain, ü, 模型\n\tnext", "plain, ü, 模型\n\tnext"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("bell\x07, back\x08, five\x05", "bell\\x07, back\\x08, five\\x05"),
        ("C1 \x9b31m", "C1 \\x9b31m"),
        ("over\rwritten", "over\\rwritten"),
        ("turned \u202etxt", "turned \\u202etxt"),
    ],
)
def test_a_terminal_obeys_nothing_of_a_printable_text(given: str, printed: str) -> None:
    assert text.printable(given) == printed


@pytest.mark.parametrize("said", ["a KeyError", "an AttributeError", "an OSError", "an ImportError", "a ValueError"])
def test_a_word_has_its_article(said: str) -> None:
    assert text.with_article(said.partition(" ")[2]) == said


def test_the_doctor_escapes_what_a_log_says() -> None:
    log = Log("a.log")
    log.read("ValueError: \x05three\x08 is\x9b odd\n")
    output = "\n".join(command.lines(diagnosis.judge([log]), [log]))
    assert "three" in output
    assert output == text.printable(output)


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["a"], "one of a"), (iter(["a", "b"]), "one of a, b"), ([], "a deployment; there is none")],
)
def test_what_is_expected_where_there_may_be_nothing_to_choose(names: Iterable[str], expected: str) -> None:
    assert text.one_of(names, "a deployment; there is none") == expected
