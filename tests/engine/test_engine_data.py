"""recipes/engines against the real parsers: the data are equal, and the plan refuses what the parser refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import engine_data
import engine_process
import environments
import mutations
import pytest

from vllm_spark.authoring import task
from vllm_spark.recipe import engine_arguments, engine_flags, flag_names
from vllm_spark.recipe.flag_argv import flag_argv

COUNT, SEED = 3000, 14
VERSIONS = sorted(environments.ENGINES)

Drawn = tuple[str, Any]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_data_are_what_the_parser_knows(version: str) -> None:
    file = engine_flags.FOLDER / f"{version}.json"
    assert file.read_text(encoding="utf-8") == engine_data.text(version), "run make engine-flags"


def test_the_tasks_are_those_of_the_newest_engine() -> None:
    assert task.FILE.read_text(encoding="utf-8") == engine_data.tasks_text(), "run make engine-flags"


def test_every_file_has_its_engine() -> None:
    assert set(engine_flags.versions()) == set(environments.ENGINES)


@cache
def judged(version: str) -> list[tuple[Drawn, str, str]]:
    """Return (flag and value, the first fault of the plan, the error of the engine) of every drawn flag."""
    engine = engine_flags.load(version)
    flags = list(mutations.drawn(engine, COUNT, SEED))
    canonical = [flag_names.canonical_item(name, value, engine) for name, value in flags]
    ours = [
        next((f"{fault.what} — {fault.expected}" for fault in engine_arguments.flag_faults(name, value, engine)), "")
        for name, value in canonical
    ]
    return list(zip(flags, ours, verdicts(version, [flag_argv(*item) for item in canonical]), strict=True))


def verdicts(version: str, words: Sequence[Sequence[str]]) -> list[str]:
    """Return the error of the engine for each list of words; empty if it accepts them."""
    output = engine_process.output(version, "judge_flags.py", lines="\n".join(map(json.dumps, words)))
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plan_refuses_nothing_that_the_engine_takes(version: str) -> None:
    refused = [(flag, ours) for flag, ours, engine in judged(version) if ours and not engine]
    meant = [flag for flag, _ in refused if is_another_flag(*flag, engine_flags.load(version))]
    assert any(flag[1] == mutations.HIDDEN_FLAG for flag in meant)
    assert [(flag, ours) for flag, ours in refused if flag not in meant] == []


def is_another_flag(name: str, value: Any, engine: engine_flags.Engine) -> bool:
    """Return True for words that the engine takes for another flag, which the plan refuses on purpose: a second flag
    among the values of one, and `NAME: false` of a flag without a --no-NAME, which may abbreviate that of another."""
    if value is False:
        canonical = flag_names.canonical_item(name, value, engine)[0]
        return canonical in engine.flags and engine.flags[canonical].kind == "values"
    return bool(value == mutations.HIDDEN_FLAG)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plan_refuses_what_the_engine_refuses(version: str) -> None:
    refused = [(flag, ours, engine) for flag, ours, engine in judged(version) if engine]
    missed = [(flag, engine) for flag, ours, engine in refused if not ours]
    found = 1 - len(missed) / len(refused)
    print(
        f"vLLM {version}: {len(refused)} of {COUNT} drawn flags refused, {found:.1%} of them by the plan; {missed[:20]}"
    )
    assert len(refused) > COUNT / 4
    assert found >= 0.97, missed
