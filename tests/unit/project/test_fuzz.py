"""A short run of the fuzz targets with fixed inputs. `make fuzz` is the long run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from fuzz import authored, oracle, targets

EXAMPLES = 25
# A record is one of many files of a host, and most damage of one is read as an absent field.
MORE_EXAMPLES = {"records": 100}
SOUND = {
    "recipes": lambda: [targets.mutations.yaml.safe_dump(recipe).encode() for recipe in targets.sound_recipes()],
    "inventories": lambda: targets.DEPLOYMENTS,
    "lock files": lambda: [targets.mutations.yaml.safe_dump(lock).encode() for lock in targets.LOCKS],
    "records": lambda: [(path, targets.json.dumps(sound).encode()) for path, sound in targets.RECORDS.items()],
    "replies": lambda: [(id_, reply.status, b"".join(reply.pieces)) for id_, reply in targets.ANSWERS.items()],
    "checkpoints": authored.sound_checkpoints,
    "imports": lambda: [targets.mutations.yaml.safe_dump(recipe).encode() for recipe in authored.sound_imports()],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.TARGETS)
def test_sound_inputs_are_accepted(name: str, tmp_path: Path) -> None:
    """A reader that refused everything would pass the test below."""
    outcomes = [targets.run(targets.TARGETS[name], value, tmp_path) for value in SOUND[name]()]
    assert set(outcomes) == {targets.ACCEPTED}


@pytest.mark.slow
@pytest.mark.parametrize("name", targets.TARGETS)
def test_damaged_inputs_are_accepted_or_refused(name: str, tmp_path: Path) -> None:
    outcomes: list[str] = []
    examples = MORE_EXAMPLES.get(name, EXAMPLES)

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(targets.TARGETS[name].inputs)
    def read(value: Any) -> None:
        outcomes.append(targets.run(targets.TARGETS[name], value, tmp_path))

    read()
    assert len(outcomes) >= examples
    assert targets.REFUSED in outcomes


# argv after `vllm` -> a part of the fault, empty for a sound launch
LAUNCHES = {
    ("serve", "m", "--port", "8000", "--max-model-len", "4k", "--dtype", "bfloat16", "--enforce-eager"): "",
    ("serve", "m", "--port", "8000.0"): "--port ['8000.0']",
    ("serve", "m", "--max-model-len", "lots"): "--max-model-len ['lots']",
    ("serve", "m", "--max-num-seqs", "0"): "--max-num-seqs ['0']",
    ("serve", "m", "--seed", "1", "--seed", "2"): "--seed twice",
    ("serve", "m", "--enforce-eager", "5"): "--enforce-eager ['5']",
    ("serve", "m", "--max_model_len", "5"): "not in the spelling",
    ("serve", "m", "--gpu-memory-utilization", "nan"): "--gpu-memory-utilization ['nan']",
    ("serve", "m\0"): "a NUL",
}


@pytest.mark.parametrize("argv", LAUNCHES, ids=lambda argv: repr(" ".join(argv)))
def test_the_oracle_knows_wrong_values(argv: tuple[str, ...]) -> None:
    found = "; ".join(oracle.faults(argv))
    assert LAUNCHES[argv] in found
    assert bool(found) is bool(LAUNCHES[argv])


def test_a_message_in_the_words_of_python_is_a_fault() -> None:
    with pytest.raises(targets.WrongValueError):
        targets.check_words("'<' not supported between instances of '_AnsibleTaggedStr' and 'int'. Fix: x.")
    with pytest.raises(targets.WrongValueError):
        targets.check_words("a message that names no fix")
