"""The tokenizer: byte-level BPE that reads any text, with an additional token for each scripted word."""

from __future__ import annotations

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tiny_gemma4.machine import Machine
from tiny_gemma4.script import FALLBACK, SPECIAL

TRAINED = 1024
CORPUS = (
    "the quick brown fox jumps over the lazy dog. Hello, how are you today? I am a tiny model on a test machine.",
    '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3, "unit": "celsius"}, "required": ["city"]}',
    "What is the capital of France? Answer with one word.",
    "What is 19 * 23? Answer with the number only.",
)


def make_tokenizer(machine: Machine) -> tuple[Tokenizer, dict[str, int]]:
    """Return the tokenizer and the ids of the scripted words. No merge leads to a scripted word: the model generates
    it, and a prompt contains it only if the trained vocabulary has it, too. Raises ValueError if that vocabulary has a
    mark, because a prompt must not contain a mark by chance."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS * 20,
        trainers.BpeTrainer(
            vocab_size=TRAINED, special_tokens=list(SPECIAL), show_progress=False, initial_alphabet=alphabet
        ),
    )
    state = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = state["model"]["vocab"]
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    ids = {}
    for word in dict.fromkeys([*machine.words, *FALLBACK]):
        spelled = word if word in SPECIAL else "".join(piece for piece, _ in as_bytes.pre_tokenize_str(word))
        if word in machine.levels and spelled in vocabulary and word not in SPECIAL:
            raise ValueError(f"the mark {word!r} is a token that a prompt may hold")
        ids[word] = vocabulary.setdefault(spelled, len(vocabulary))
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer, ids
