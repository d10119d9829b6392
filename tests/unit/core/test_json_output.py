"""Documents of verbs for programs: their schemas, their examples, and what is made of failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

import verb_documents
from registered_refusals import registered
from vllm_spark.cli import main
from vllm_spark.core import json_output
from vllm_spark.core.refusal import Fix, RefusalKind
from vllm_spark.sizing import reference_spark

VERBS = sorted(json_output.SCHEMAS)
TEXTS = st.text(min_size=1).map(str.strip).filter(bool)


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a schema."""
    if isinstance(node, dict):
        yield node
        for name, part in node.items():
            if name != "examples":
                yield from parts(part)
    elif isinstance(node, list):
        for part in node:
            yield from parts(part)


def test_each_verb_with_a_document_has_a_schema() -> None:
    assert VERBS == ["doctor", "history", "plan", "status", "verify"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_schema_explains_every_field_and_stays_open(verb: str) -> None:
    schema = json_output.schema(verb)
    Draft202012Validator.check_schema(schema)
    assert schema["properties"]["schema"]["const"] == f"vllm-spark/{verb}/1"
    described = [
        {**schema["$defs"].get(str(field.get("$ref")).rpartition("/")[2], {}), **field}
        for part in parts(schema)
        if "type" in part
        for field in part.get("properties", {}).values()
    ]
    assert len(described) > 20
    assert [field for field in described if not field.get("description")] == []
    # A later release may add fields.
    assert [part for part in parts(schema) if "additionalProperties" in part] == []


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_the_page_is_valid_and_complete(verb: str) -> None:
    (example,) = json_output.schema(verb)["examples"]
    verb_documents.judged(example)
    with pytest.raises(ValidationError):
        verb_documents.judged({**example, "another": 1})
    for field in example:
        with pytest.raises((ValidationError, KeyError)):
            verb_documents.judged({name: value for name, value in example.items() if name != field})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_cannot_begin_has_a_document(verb: str) -> None:
    kind = RefusalKind("some-id", "some-page")
    refusal = kind(what="a", expected="b", fix=Fix("make setup"))
    document = verb_documents.judged(json_output.refused(verb, [refusal]))
    fix = {"command": "make setup", "remark": None}
    expected = {"host": None, "id": "some-id", "what": "a", "expected": "b", "fix": fix, "runbook": "some-page"}
    assert document["refusals"] == [expected]


@settings(deadline=None)
@given(what=TEXTS, expected=TEXTS, command=TEXTS, remark=TEXTS)
def test_every_refusal_keeps_its_parts(what: str, expected: str, command: str, remark: str) -> None:
    for id_, runbook in list(registered().items())[:: len(registered()) // 9]:
        kind = RefusalKind(id_, runbook)
        told = kind(what=what, expected=expected, fix=Fix(command, remark)).to_json()
        assert told["fix"] == {"command": command, "remark": remark}
        sentence = kind(what=what, expected=expected, fix=remark).to_json()
        assert sentence["fix"] == {"command": None, "remark": remark}
        run = json_output.Run("plan")
        run.fail("spark1", "a message", [told, sentence], unreachable=False)
        assert [one["id"] for one in verb_documents.judged(run.document())["refusals"]] == [id_, id_]


def test_a_host_that_fails_has_one_row_and_keeps_it() -> None:
    run = json_output.Run("history")
    run.add({"hosts": [{"host": "spark1", "answers": True, "problem": ""}]})
    run.fail("spark1", "broken", [], unreachable=False)
    run.fail("spark2", "no route\nto it", [], unreachable=True)
    document = verb_documents.judged(run.document())
    rows = [(row["host"], row["answers"], row["problem"]) for row in document["hosts"]]
    assert rows == [("spark1", True, ""), ("spark2", False, "no route")]
    assert [failure["message"] for failure in document["failures"]] == ["broken", "no route\nto it"]


@pytest.mark.parametrize(
    ("words", "status", "verdict"),
    [
        (["gemma-4-26b-a4b-fp8-mtp"], 0, "go"),
        (["gemma-4-26b-a4b-fp8-mtp", "--min-speed", "9999"], 1, "no-go"),
        (["nosuch"], 1, ""),
        (["absent/recipe.yml"], 1, ""),
    ],
)
def test_the_plan_of_a_recipe(words: list[str], status: int, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "--json", *words]) == status
    document = verb_documents.judged(json.loads(capsys.readouterr().out))
    assert [entry["verdict"] for entry in document["deployments"]] == ([verdict] if verdict else [])
    assert bool(document["refusals"]) == bool(status)
    if verdict:
        (memory,) = document["deployments"][0]["memory"]
        assert memory["total_bytes"] == reference_spark.MEMORY["total"]
        assert memory["weights_bytes"] < memory["reserved_bytes"] < memory["available_bytes"]


def test_a_log_that_cannot_be_read_is_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "engine.log.zst"
    file.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(9))
    assert main.main(["doctor", str(file), "--json"]) == 2
    out, err = capsys.readouterr()
    (refusal,) = verb_documents.judged(json.loads(out))["refusals"]
    assert refusal["id"] == "log-unreadable"
    assert f"Fix: {refusal['fix']['command']}. See " in err
