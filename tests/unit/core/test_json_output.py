"""Documents of verbs for programs: their schemas, their examples, and what is made of failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verb_documents
from registered_refusals import registered
from vllm_spark.cli import main
from vllm_spark.core import json_output
from vllm_spark.core.refusal import Fix, RefusalKind
from vllm_spark.sizing import reference_spark

VERBS = sorted(json_output.DOCUMENTS)
TEXTS = st.text(min_size=1).map(str.strip).filter(bool)


def test_the_verbs_that_have_a_document() -> None:
    assert VERBS == ["doctor", "plan", "status"]
    assert verb_documents.sections().keys() == {verb_documents.EVERY, *VERBS}


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_has_each_field_once_and_the_example_is_complete(verb: str) -> None:
    rows = verb_documents.ROW.findall(verb_documents.sections()[verb])
    assert len(rows) > 15
    assert len({path for path, _, _ in rows}) == len(rows)
    example = verb_documents.judged(verb_documents.example(verb))
    for field in example:
        with pytest.raises((AssertionError, KeyError)):
            verb_documents.judged({name: value for name, value in example.items() if name != field})


def test_the_page_refuses_another_field_and_another_type() -> None:
    known = {".a": "array", ".a[].b": "integer or null", ".a[].c": '`"x"`, `"y"`, `null`', ".d": "number"}
    assert list(verb_documents.faults({"a": [{"b": 1, "c": None}, {"b": None, "c": "x"}], "d": 1}, known)) == []
    found = set(verb_documents.faults({"a": [{"b": True, "c": "z", "e": 1}]}, known))
    assert found == {
        ".a[].e: not in the page",
        ".a[].b: True is no integer or null",
        '.a[].c: \'z\' is no `"x"`, `"y"`, `null`',
        ".d: missing",
    }


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
    run = json_output.Run("status")
    run.add({"hosts": [json_output.row("status", "spark1", "", answers=True)]})
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
        of_deployment = {path for path in verb_documents.fields("plan") if path.startswith(".deployments")}
        assert of_deployment <= set(verb_documents.seen(document))
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
