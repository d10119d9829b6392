"""The sandbox's tiny model against the gates, without an engine: its template chooses a script, its machine generates
it, and the gates judge it. Small fakes replace the parsers and grammars of the engine."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import pytest
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fakes import anthropic_api
from fakes.gate_requests import gate_request
from tiny_gemma4 import machine
from tiny_gemma4.script import BREAD, END, GREETING, QUOTE, SCRIPTS, SPECIAL, Script, spell
from tiny_gemma4.shape import HIDDEN, LEAST_FREE
from tiny_gemma4.template import TEMPLATE
from vllm_spark.core import paths
from vllm_spark.node import garbage as rules
from vllm_spark.node.engine_api import CHAT
from vllm_spark.recipe import engine_paths, loader
from vllm_spark.verify import registry
from vllm_spark.verify.gates import answer, failover, garbage, structured, tools, vision
from vllm_spark.verify.verdict import Verdict

MACHINE = machine.build()
RECIPES = paths.ROOT / "sandbox" / "recipes"
EVERY_GATE = paths.ROOT / "molecule" / "solo" / "vars" / "every_gate.yml"
# The optional gates whose verdict depends on the text of the model.
TEXT_GATES = [gate for gate in registry.OPTIONAL if gate is not failover.GATE]
GREETED = "Hello from tiny Gemma: the engine is real, its weights are not."
# Which of equal letters a model prefers is chance: in two orders, of which one begins with white space.
LETTERS = (string.printable, string.printable[::-1])


def prompt_of(body: Mapping[str, Any]) -> str:
    """Return the prompt as transformers renders a chat template."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    messages = json.loads(json.dumps(body["messages"]))
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return environment.from_string(TEMPLATE).render(
        messages=messages,
        tools=body.get("tools"),
        bos_token="<bos>",  # noqa: S106  a token of a text
        add_generation_prompt=True,
        **body.get("chat_template_kwargs", {}),
    )


def without_spaces(text: str) -> str:
    """Return JSON without white space outside its strings, also if it is truncated."""
    return "".join(re.findall(r'"(?:[^"\\]|\\.)*"?|\S', text))


def grammar(body: Mapping[str, Any]) -> Callable[[str, str], bool]:
    """Return whether a grammar allows a word after a text: the start of one of its texts, or the end of a whole one."""
    texts = set(body.get("structured_outputs", {}).get("choice", ()))
    form = str
    if "response_format" in body:
        assert body["response_format"]["json_schema"]["schema"] == structured.SCHEMA
        values = product(*structured.FIELDS.values())
        texts = {json.dumps(dict(zip(structured.FIELDS, row, strict=True)), separators=(",", ":")) for row in values}
        form = without_spaces

    def allowed(text: str, word: str) -> bool:
        if not texts:
            return True
        return form(text) in texts if word == END else any(whole.startswith(form(text + word)) for whole in texts)

    return allowed


def generated(body: Mapping[str, Any], letters: str = "") -> list[str]:
    """Return the words of the reply."""
    prompt = [word for word in re.split(f"({'|'.join(map(re.escape, SPECIAL))})", prompt_of(body)) if word]
    return list(MACHINE.speak(prompt, body["max_tokens"], grammar(body), letters))


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the message as Gemma 4's parsers read it."""
    text = "".join(words)
    thought = re.match(r"<\|channel>thought\n(.*?)<channel\|>", text, re.DOTALL)
    text = text[thought.end() :] if thought else text
    calls = []
    for name, inside in re.findall(r"<\|tool_call>call:(\w+)\{(.*?)\}<tool_call\|>", text, re.DOTALL):
        pairs = re.findall(rf"(\w+):(?:{re.escape(QUOTE)}(.*?){re.escape(QUOTE)}|(\w+))", inside)
        arguments = json.dumps({key: quoted or bare for key, quoted, bare in pairs})
        call = {"index": len(calls), "id": f"call-{len(calls)}", "function": {"name": name, "arguments": arguments}}
        calls.append(call)
    content = re.sub(r"<\|tool_call>.*<tool_call\|>", "", text, flags=re.DOTALL)
    return {"content": content, "reasoning": thought and thought[1], "tool_calls": calls}


def reply(request: Mapping[str, Any], letters: str) -> dict[str, Any]:
    """Return the response that vllm_probe would return."""
    body = request["body"]
    speaks_anthropic = request["path"].startswith(engine_paths.MESSAGES)
    words = generated(anthropic_api.chat_of(body) if speaks_anthropic else body, letters)
    message = parsed(words)
    choice = {"index": 0, "finish_reason": "tool_calls" if message["tool_calls"] else "stop"}
    if body.get("return_token_ids"):
        known = list(MACHINE.words)
        choice |= {"token_ids": [known.index(word) for word in words]}
    if speaks_anthropic:
        said = anthropic_api.message_of({"model": body["model"], "choices": [{**choice, "message": message}]})
        if body.get("stream"):
            return {"status": 200, "events": list(anthropic_api.events_of(said)), "done": False, "bad": ""}
        return {"status": 200, "json": {**said, "input_tokens": 1}}
    if not body.get("stream"):
        return {"status": 200, "json": {"model": body["model"], "choices": [{**choice, "message": message}]}}
    event = {"model": body["model"], "choices": [{**choice, "delta": message}]}
    return {"status": 200, "events": [event], "done": True, "bad": ""}


def gates_of(name: str) -> dict[str, Any]:
    """Return the gates of the recipe, and those that molecule/solo adds."""
    every = yaml.load(EVERY_GATE.read_text(encoding="utf-8"), yaml.CSafeLoader)["every_gate"]
    return {**loader.load(name, (RECIPES,)).document["gates"], **every}


def verdicts(used: Mapping[str, Any], letters: str = "") -> Iterator[Verdict]:
    """Yield the verdicts of the gate `answer` and of every gate that is used."""
    request = gate_request(served_name="tiny", gates=used, answers=answer.DEFAULT_ANSWERS)
    judged = [answer.GATE, *(gate for gate in TEXT_GATES if gate.name in used)]
    sent = [one for gate in judged for one in gate.requests(request)]
    probe: Any = {"responses": {one["id"]: reply(one, letters) for one in sent}}
    for gate in judged:
        yield from gate.judge(request, probe, [])


@pytest.mark.parametrize("letters", LETTERS, ids=["letters first", "spaces first"])
def test_the_model_passes_every_gate(letters: str) -> None:
    used = gates_of("tiny-gemma4")
    judged = list(verdicts(used, letters))
    assert [verdict.line() for verdict in judged if verdict.ok is not True] == []
    assert {verdict.gate for verdict in judged} == {"answer"} | {gate.name for gate in TEXT_GATES} & set(used)


def test_the_sandbox_uses_every_gate_of_chats_but_vision() -> None:
    chats = {gate.name for gate in registry.OPTIONAL if CHAT in gate.roles}
    assert chats - set(gates_of("tiny-gemma4")) == {vision.NAME}
    assert gates_of("tiny-gemma4")["probe"] == {"needed": 7}


WEATHER = {"tools": [tools.WEATHER], "tool_choice": "auto"}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("more", "content", "reasoning", "calls"),
    [
        ({}, GREETED, None, []),
        ({"chat_template_kwargs": {"enable_thinking": True}}, GREETED, "The user said something; I should greet", []),
        (WEATHER, "", None, [("get_weather", {"city": "Paris", "days": "3"})]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}, GREETED, None, []),
        # A question that has a script only with tools, or only without them.
        ({"messages": [{"role": "user", "content": "What time is it in Tokyo? Use a tool."}]}, GREETED, None, []),
        (
            {**WEATHER, "messages": [{"role": "user", "content": answer.DEFAULT_ANSWERS[0]["ask"]}]},
            "",
            None,
            [("get_weather", {"city": "Paris", "days": "3"})],
        ),
    ],
    ids=["greeting", "thought", "tool call", "parts", "no tools", "a tool first"],
)
def test_replies_to_other_prompts(more: dict[str, Any], content: str, reasoning: str | None, calls: list[Any]) -> None:
    message = parsed(generated({"messages": HELLO, "max_tokens": 96, **more}))
    named = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    assert (message["content"], message["reasoning"], named) == (content, reasoning, calls)


def test_a_tools_answer_must_reach_the_prompt() -> None:
    """An engine that loses the result of a tool fails, because the model does not know the result."""
    requests = tools.build_requests(gate_request(gates={"tools": {}}))
    body: Any = next(request for request in requests if request["id"] == "tools-synthesis")["body"]
    assert "31" in parsed(generated(body))["content"]
    body["messages"][-1]["content"] = '{"temperature_c": 30}'
    assert parsed(generated(body))["content"] == GREETED


def test_a_call_of_an_earlier_turn_decides_nothing() -> None:
    """Marks are tokens that are in no prompt: the words of a reply are other tokens in a later prompt."""
    marks = [mark for mark, level in MACHINE.levels.items() if level > 1]
    assert marks
    assert not set(marks) & set(SPECIAL)


def test_the_text_is_long_enough_to_be_judged() -> None:
    assert rules.LEAST_IDS_FOR_RATIO <= len(BREAD) < garbage.MAX_TOKENS


def test_the_script_fits_the_hidden_state() -> None:
    assert 2 + len(MACHINE.words) + len(MACHINE.levels) + LEAST_FREE <= HIDDEN


def test_an_ambiguous_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Script("<|script:twin>", ("Par", " excellence"), "What is the best?")
    monkeypatch.setattr(machine, "SCRIPTS", (*SCRIPTS, twin))
    assert machine.build().shared("Par")
    again = Script("<|script:again>", ("ha", "ha", "ho"), "What is funny?")
    monkeypatch.setattr(machine, "SCRIPTS", (*SCRIPTS, again))
    with pytest.raises(ValueError, match=r"after 'ha' of '<\|script:again>' the word 'ha' leads by 0"):
        machine.build()
    greeter = Script("<|script:greeter>", ("Hello", " there"), "Who is there?")
    monkeypatch.setattr(machine, "SCRIPTS", (*SCRIPTS, greeter))
    with pytest.raises(ValueError, match="Fix: split the script's words in another way"):
        machine.build()


def test_spelled_words_differ() -> None:
    assert spell("a rose is a rose is a", taken=[" is"]) == ("a", " rose", " is a", " rose is", " a")
    assert len(set(BREAD)) == len(BREAD)
    assert not set(BREAD) & set(GREETING)
