"""Prompts: the same by seed, of the wanted length, with a beginning that no cache has."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from vllm_spark.node.bench import corpora, corpus

LEAST = {"chat": 40, "code": 30, "json": 20, "long": 100}
# Paragraphs of 100,000 tokens, and the longest span of words that they may repeat.
MANY_TOKENS, TOKENS_PER_WORD, LONGEST_REPEAT = 100_000, 1.3, 90

# Tokenizers unlike each other: pieces of words and single digits, bytes, words.
TOKENIZERS: dict[str, Callable[[str], int]] = {
    "pieces": lambda text: len(re.findall(r"\d|[^\W\d]{1,6}|[^\w\s]|\n+", text)),
    "bytes": lambda text: len(text.encode()),
    "words": lambda text: len(text.split()),
    "estimate": corpus.estimate,
}
PIECES = TOKENIZERS["pieces"]


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  not a secret


def content(*arguments: int, of: str = "chat", count: Callable[[str], int] = PIECES, salt: str = "") -> str:
    [message] = corpus.prompt(of, *arguments, count, salt)
    assert message["role"] == "user"
    return message["content"]


@pytest.mark.parametrize("name", corpora.CLASSES)
def test_the_texts_of_a_class_are_many_and_different(name: str) -> None:
    lines = corpora.lines(name)
    assert len(lines) >= LEAST[name]
    assert len({tuple(line.split()[:6]) for line in lines}) == len(lines)
    assert all(line.isascii() and line[-1] in '.?"' for line in lines)


def test_the_long_texts_have_enough_words() -> None:
    assert sum(len(line.split()) for line in corpora.lines("long")) >= 12_000


def test_every_slot_is_filled() -> None:
    chance = seeded(1)
    assert [line for line in (corpora.filled(p, chance) for p in corpora.lines("long")) if "{" in line] == []


def test_a_slot_is_the_same_in_its_paragraph_and_its_second_value_another() -> None:
    first, again, second = corpora.filled("{town}, {town}, {town2}", seeded(7)).split(", ")
    assert first == again
    assert first != second


def test_a_hundred_thousand_tokens_repeat_no_long_span() -> None:
    words: list[str] = []
    for paragraph in corpora.paragraphs(seeded(3)):
        words += paragraph.split()
        if len(words) > MANY_TOKENS / TOKENS_PER_WORD:
            break
    spans = Counter(hash(tuple(words[at : at + LONGEST_REPEAT])) for at in range(len(words) - LONGEST_REPEAT))
    assert max(spans.values()) == 1


@pytest.mark.parametrize("count", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize(("tokens", "depth"), [(512, 0), (2048, 0), (2048, 16384)])
def test_a_prompt_has_the_wanted_number_of_tokens(count: Callable[[str], int], tokens: int, depth: int) -> None:
    text = content(1, 0, tokens, depth, count=count)
    assert count(text) == pytest.approx(tokens + depth, rel=0.01)


@pytest.mark.parametrize("of", corpora.CLASSES)
def test_short_prompts_of_every_class_are_exact(of: str) -> None:
    lengths = [PIECES(content(1, index, 256, 0, of=of)) for index in range(8)]
    assert all(length == pytest.approx(256, rel=0.01) for length in lengths)


def test_a_prompt_counts_few_times() -> None:
    calls: list[int] = []

    def count(text: str) -> int:
        calls.append(len(text))
        return PIECES(text)

    content(1, 0, 2048, 30000, count=count)
    assert len(calls) <= 12


def test_a_prompt_is_the_same_by_seed_and_index() -> None:
    assert content(5, 2, 300, 0) == content(5, 2, 300, 0)
    texts = {content(seed, index, 300, 0) for seed in (5, 6) for index in range(4)}
    assert len(texts) == 8


def test_prompts_differ_in_their_first_words() -> None:
    firsts = {content(seed, index, 300, 0).split()[0] for seed in (5, 6) for index in range(20)}
    assert len(firsts) == 40


def test_a_salt_changes_the_prefix_and_nothing_else() -> None:
    one, other = content(5, 2, 600, 0, salt="run 1"), content(5, 2, 600, 0, salt="run 2")
    (prefix, _, rest), (other_prefix, _, other_rest) = one.partition("\n\n"), other.partition("\n\n")
    assert prefix.split()[0] != other_prefix.split()[0]
    assert rest.rpartition("\n\n")[2] == other_rest.rpartition("\n\n")[2]
    assert rest[:1000] == other_rest[:1000]


@pytest.mark.parametrize("count", TOKENIZERS.values(), ids=TOKENIZERS)
def test_the_prefix_has_its_tokens(count: Callable[[str], int]) -> None:
    assert count(corpus.prefix("a", count)) >= corpus.PREFIX_TOKENS


def test_the_streams_of_a_cell_ask_different_questions() -> None:
    asked = {content(1, index, 0, 0).rpartition("\n\n")[2] for index in range(40)}
    assert len(asked) == 40


def test_a_prompt_that_is_shorter_than_its_question_is_the_question() -> None:
    assert content(1, 0, 8, 0).count("\n\n") == 1


def test_notes_are_drawn_in_another_order_by_seed() -> None:
    orders = [list(islice(corpora.paragraphs(seeded(seed)), 5)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_the_hash_of_the_corpora_changes_with_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = corpora.sha256()
    for file in corpora.FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat.txt").write_text("another question\n")
    monkeypatch.setattr(corpora, "FOLDER", tmp_path)
    corpora.sha256.cache_clear()
    changed = corpora.sha256()
    corpora.sha256.cache_clear()
    assert len(before) == len(changed) == 12
    assert before != changed
