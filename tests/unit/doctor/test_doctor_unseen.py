"""The form of the logs that no rule was written for. A score is counted apart: no rule is written for a test."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

import project_files
import unseen_score
from vllm_spark.core import strict_yaml

FOLDER = project_files.DATA / "doctor-unseen"
FAILED = ("seen", "held")
SECOND = ("second-seen", "second-held")
# A thread, a file of a repository, or a public file whose repository the index does not name.
SOURCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+|:\S+)|public file \(index id \d+\)")
FIELDS = {"id", "source", "operator", "kind", "log", "cause", "needed", "fix", "confirmed"}
MAYBE = {"completed", "known_form"}


def entries(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = strict_yaml.load_own((FOLDER / f"{name}.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.mark.parametrize("name", [*FAILED, *SECOND])
def test_a_failure_has_its_source_its_lines_and_what_its_owner_needed(name: str) -> None:
    for entry in entries(name):
        assert FIELDS <= set(entry) <= FIELDS | MAYBE, entry["id"]
        assert SOURCE.fullmatch(entry["source"]), entry["id"]
        assert entry.get("known_form", True) is True
        assert all(str(entry[field]).strip() for field in FIELDS), entry["id"]


def test_a_sound_log_has_its_source_and_what_looks_like_a_fault() -> None:
    sound = entries("sound")
    needed = {"id", "source", "operator", "look_alike", "log"}
    assert all(needed <= set(entry) <= {*needed, "completed"} for entry in sound)
    assert all(SOURCE.fullmatch(entry["source"]) and entry["log"].strip() for entry in sound)
    assert len(sound) >= 30


def test_an_id_occurs_once_and_an_operator_is_in_one_file() -> None:
    ids = Counter(entry["id"] for name in (*FAILED, *SECOND, "sound", "deaths") for entry in entries(name))
    assert [name for name, times in ids.items() if times > 1] == []
    for pair in (FAILED, SECOND):
        seen, held = ({entry["operator"] for entry in entries(name)} for name in pair)
        assert seen & held == set()


def test_the_second_gathering_has_other_threads_and_a_third_held_back() -> None:
    first, second = ({entry["source"] for name in pair for entry in entries(name)} for pair in (FAILED, SECOND))
    assert first & second == set()
    seen, held = (len(entries(name)) for name in SECOND)
    assert seen + held >= 150
    assert held >= (seen + held) / 3


def test_a_third_is_held_back_and_has_every_kind() -> None:
    seen, held = (Counter(entry["kind"] for entry in entries(name)) for name in FAILED)
    total = seen.total() + held.total()
    assert total >= 100
    assert 0.3 * total <= held.total() <= 0.4 * total
    assert set(seen) == set(held)


# Right first, near, wrong, unknown, all-clear. Before the first rule: seen 25, 29, 15, 24, 0; held 11, 5, 5, 26, 0;
# second-seen 44, 48, 14, 5, 0; second-held 26, 21, 10, 6, 0; deaths with status 0: 9 of 21; alarms: 2 of 32. These are
# the figures after them; `pytest -s -m slow` prints today's. Whoever wrote the rules had gathered the second corpus, so
# that its held part was read before it was held back; that of the first was not.
AFTER = {
    "seen": (87, 5, 0, 1, 0),
    "held": (23, 8, 2, 14, 0),
    "second-seen": (95, 15, 1, 0, 0),
    "second-held": (36, 19, 6, 2, 0),
}
DEATHS_AFTER = 0  # with exit status 0, of 21
ALARMS_AFTER = 2  # of 32


@pytest.mark.slow
@pytest.mark.parametrize("name", AFTER)
def test_the_first_finding_is_right_as_often_as_recorded(name: str) -> None:
    found = unseen_score.counts(entries(name))
    print(f"\n{name}: " + ", ".join(f"{verdict} {found[verdict]}" for verdict in unseen_score.VERDICTS))
    print(f"not right, by kind: {dict(unseen_score.wrong_kinds(entries(name)))}")
    assert found["right"] >= AFTER[name][0]
    assert found["wrong"] <= AFTER[name][2]
    assert found["all-clear"] <= AFTER[name][-1]


@pytest.mark.slow
def test_a_death_after_a_good_start_is_no_success() -> None:
    statuses = list(unseen_score.after_a_good_start(entry["line"] for entry in entries("deaths")))
    print(f"\ndeaths with exit status 0: {statuses.count(0)} of {len(statuses)}")
    assert statuses.count(0) <= DEATHS_AFTER


@pytest.mark.slow
def test_a_sound_log_is_no_alarm() -> None:
    alarms = unseen_score.alarms(entries("sound"))
    print(f"\nalarms on sound logs: {alarms} of {len(entries('sound'))}")
    assert alarms <= ALARMS_AFTER
