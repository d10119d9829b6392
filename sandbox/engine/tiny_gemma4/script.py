"""The replies of the tiny model, as data.

A script is a sequence of words. Each word is one token, even if it contains spaces. The first word is a special token
that the chat template appends to the prompt. machine.py describes which words several scripts may share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

END = "<turn|>"
CALL, CALL_END = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'

PLAIN, TOOLS, RESULTS = "plain", "tools", "results"


@dataclass(frozen=True, slots=True)
class Script:
    """One reply.

    `ask`: the exact last user message that selects it; if empty, the template selects it. `turn`: a further condition:
    PLAIN, no tools; TOOLS, tools, none of which has answered; RESULTS, the last message is a tool's, and the results
    contain all of `needs`. `marks`: words after which shared words get another successor.
    """

    start: str
    words: tuple[str, ...]
    ask: str = ""
    turn: str = PLAIN
    needs: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def chain(self) -> tuple[str, ...]:
        """All words, from the start of the script to the end of the turn."""
        return (self.start, *self.words, END)


def spell(text: str, taken: Iterable[str]) -> tuple[str, ...]:
    """Split a text into words that differ from each other and from `taken`. A word that does not is joined with the
    next one."""
    known, words, word = set(taken), [], ""
    for piece in re.findall(r"\s*\S+", text):
        word += piece
        if word not in known:
            known.add(word)
            words.append(word)
            word = ""
    return (*words[:-1], words[-1] + word)


GREETING = ("Hello", " from", " tiny", " Gemma", ":", " the", " engine", " is", " real", ",", " its", " weights",
            " are", " not", ".")  # fmt: skip
THOUGHT = ("<|channel>", "thought\n", "The", " user", " said", " something", ";", " I", " should", " greet",
           "<channel|>")  # fmt: skip
THINK, TOOL = "<|script:think>", "<|script:tool>"

# A text that is long enough to reveal wrong numbers in any layer.
BREAD = spell(
    "Bread begins with flour, water, salt and yeast. Mixed and kneaded, the flour's proteins link into gluten, an "
    "elastic net that stretches without tearing. Meanwhile yeast feeds on sugars that enzymes free from starch, and "
    "breathes out carbon dioxide. Trapped bubbles swell, so the dough rises while it rests somewhere warm. A baker "
    "shapes a loaf and lets it rise again; in a hot oven gas expands quickly, then crust and crumb set. Left to cool "
    "on a rack, its aroma settles and slicing becomes easy.",
    taken=(*GREETING, *THOUGHT),
)

HTML = ("<div", ' class="a"', "><b>", "Hello</b>", "</div>")
# The end of each question of the reasoning probe.
FORM = " Think step by step. End with one line: `Answer:` and the answer alone."


def _call(name: str, key: str, *value: str, close: str = QUOTE + "}") -> tuple[str, ...]:
    """Return a call with one text argument, in Gemma 4's format."""
    return (CALL, "call:", name, key, QUOTE, *value, close, CALL_END)


SCRIPTS = (
    Script(THINK, (*THOUGHT, *GREETING)),
    # The call if tools are declared and no question is recognised.
    Script(TOOL, (CALL, "call:", "get_weather", "{city:", QUOTE, "Paris", QUOTE + ",", "days:", "3", "}", CALL_END)),
    Script("<|script:capital>", ("Par", "is"), "What is the capital of France? Answer with one word."),
    Script("<|script:product>", ("43", "7"), "What is 19 * 23? Answer with the number only."),
    Script(
        "<|script:bread>",
        BREAD,
        "Explain in about 150 words, in plain prose without lists, how bread is made and why the dough rises.",
    ),
    # Tools.
    Script(
        "<|script:tool-one>",
        _call("get_weather", "{city:", "Paris"),
        "What is the weather in Paris? Use the tool.",
        TOOLS,
    ),
    Script(
        "<|script:tool-two>",
        (
            *_call("get_weather", "{city:", close="Paris" + QUOTE + "}"),
            *_call("get_time", "{city:", close="Tokyo" + QUOTE + "}"),
        ),
        "What is the weather in Paris and what time is it in Tokyo? Call both tools at once.",
        TOOLS,
        marks=("Paris" + QUOTE + "}", "Tokyo" + QUOTE + "}"),
    ),
    Script(
        "<|script:tool-html>",
        _call("write_page", "{html:", *HTML),
        f"Write a page with exactly this HTML, changing nothing: {''.join(HTML)}",
        TOOLS,
    ),
    Script(
        "<|script:tool-choice>",
        _call("get_time", "{city:", "Tokyo"),
        "What time is it in Tokyo? Use a tool.",
        TOOLS,
    ),
    Script(
        "<|script:told-one>",
        ("It is", " 31", " degrees", " and clear."),
        "What is the weather in Paris? Give the temperature in digits.",
        RESULTS,
        needs=("31",),
    ),
    Script(
        "<|script:told-two>",
        ("Paris has", " 31 degrees", "; in Tokyo", " it is", " 18:45."),
        "How warm is it in Paris and what time is it in Tokyo? Give both in digits.",
        RESULTS,
        needs=("31", "18:45"),
    ),
    # The reasoning probe.
    Script(
        "<|script:sheep>",
        ("Those that stay", " are nine.", "\nAnswer: 9"),
        "A farmer has 17 sheep. All but 9 run away. How many sheep are left?" + FORM,
    ),
    Script(
        "<|script:pen>",
        ("5 cents", " and 105", " make 110.", "\nAnswer: 5"),
        "A pad and a pen cost 110 cents together. The pad costs 100 cents more than the pen. What does the pen cost?"
        + FORM,
    ),
    Script(
        "<|script:next>",
        ("The steps", " grow by two", ", so", " 12 follows.", "\nAnswer: 42"),
        "Which number comes next: 2, 6, 12, 20, 30, ...?" + FORM,
    ),
    Script(
        "<|script:shortest>",
        ("Anna,", " then Ben,", " then Carl.", "\nAnswer: Carl"),
        "Anna is taller than Ben. Carl is shorter than Ben. Who is the shortest of the three?" + FORM,
    ),
    Script(
        "<|script:letters>",
        ("st-r-", "awbe-", "r-r-", "y.", "\nAnswer: 3"),
        "How many times does the letter r occur in the word strawberry?" + FORM,
    ),
    Script(
        "<|script:day>",
        ("100 days", " are 14 weeks", " and two days.", "\nAnswer: Friday"),
        "Today is Wednesday. Which day of the week is it in 100 days?" + FORM,
    ),
    Script(
        "<|script:train>",
        ("Two hours", " and 35 minutes", " are 120 + 35.", "\nAnswer: 155"),
        "A train leaves at 14:45 and arrives at 17:20 the same day. How many minutes does it travel?" + FORM,
    ),
)
# An unscripted prompt ends with a line break or the end of a thought. The reply is the greeting.
GREETED = ("\n", *GREETING, END)

# Outside a script these words are likely in this order: an unscripted prompt gets the greeting, and a reply under a
# JSON grammar has short values, closes its brackets soon and ends as early as possible.
FALLBACK = {"Hello": 16.0, '"': 13.0, "}": 12.0, "]": 11.0, "{": 10.0, "[": 9.0, ":": 8.5, ",": 8.0, "1": 7.0,
            "3": 6.5, "true": 6.0, "tower": 5.5, END: 3.0}  # fmt: skip
# Inside a JSON string the greeting is followed by the closing quote.
AFTER_GREETING = ('"', 6.0)

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", END, "<|channel>", "<channel|>", "<|think|>",
           "<|tool>", "<tool|>", CALL, CALL_END, "<|tool_response>", "<tool_response|>", QUOTE,
           *(script.start for script in SCRIPTS))  # fmt: skip
