"""Evidence of the bench in recipes: what does not belong is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.bench_runs import cell_record, parsed, run_record
from fakes.evidenced_recipe import GB10, OWN_KEY, OWN_SUBJECT, PATH, WHY, folder
from vllm_spark.bench import recipe_evidence, verdict
from vllm_spark.cli.main import main
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import loader


def test_evidence_of_the_recipe_on_a_spark_is_accepted(tmp_path: Path) -> None:
    recipes = folder(tmp_path)
    assert main(["check", str(recipes / "mine.yml")]) == 0


def test_evidence_needs_no_report(tmp_path: Path) -> None:
    recipes = folder(tmp_path)
    document = yaml.load((recipes / "mine.yml").read_text(), yaml.CSafeLoader) | {"evidence": [{"bench": [PATH]}]}
    (recipes / "mine.yml").write_text(yaml.safe_dump(document))
    assert recipe_evidence.refusals(loader.read(recipes / "mine.yml"), recipes) == []


# Changes of the run, and the part that differs with its value.
FOREIGN: dict[str, tuple[dict[str, Any], str, str]] = {
    "model": ({"key": OWN_KEY | {"model": "dummy 31b"}}, "model", "dummy 31b"),
    "commit": ({"key": OWN_KEY | {"commit": "2" * 40}}, "commit", "2" * 40),
    "layout": ({"key": OWN_KEY | {"layout": "mlp=nvfp4"}}, "layout", "mlp=nvfp4"),
    "image": ({"key": OWN_KEY | {"image": f"sha256:{'3' * 64}"}}, "image", f"sha256:{'3' * 64}"),
    "wheel": ({"key": OWN_KEY | {"image": "wheel vllm 0.30.0"}}, "image", "wheel vllm 0.30.0"),
    "topology": ({"key": OWN_KEY | {"topology": "2 nodes, tp 2, ray"}}, "topology", "2 nodes, tp 2, ray"),
    "engine": ({"subject": OWN_SUBJECT | {"engine_version": "0.31.0"}}, "engine", "0.31.0"),
    "recipe": ({"subject": OWN_SUBJECT | {"recipe": "other"}}, "recipe", "other"),
    "gpu": ({"host": {"h": {"gpu": "NVIDIA H200"}}}, "gpu", "NVIDIA H200"),
    "gpu unknown": ({"host": {}}, "gpu", "not recorded"),
}


@pytest.mark.parametrize(("run", "part", "value"), FOREIGN.values(), ids=FOREIGN)
def test_foreign_evidence_needs_its_difference(run: dict[str, Any], part: str, value: str, tmp_path: Path) -> None:
    recipes = folder(tmp_path / "bare", **run)
    (refusal,) = recipe_evidence.refusals(loader.read(recipes / "mine.yml"), recipes)
    assert f"{PATH} has {part} {value}" in str(refusal)
    assert f"evidence[0].differs.{part}" in str(refusal)
    recipes = folder(tmp_path / "explained", {"differs": {part: WHY}}, **run)
    assert recipe_evidence.refusals(loader.read(recipes / "mine.yml"), recipes) == []


@pytest.mark.parametrize("part", ["commit", "layout", "image", "topology"])
def test_what_a_run_does_not_record_is_no_difference(part: str, tmp_path: Path) -> None:
    recipes = folder(tmp_path, key=OWN_KEY | {part: ""})
    assert recipe_evidence.refusals(loader.read(recipes / "mine.yml"), recipes) == []


def test_a_difference_that_no_file_has_is_refused(tmp_path: Path) -> None:
    recipes = folder(tmp_path, {"differs": {"gpu": WHY, "launch": WHY}})
    (refusal,) = recipe_evidence.refusals(loader.read(recipes / "mine.yml"), recipes)
    assert "evidence[0].differs.gpu: no file differs in it" in str(refusal)


# Changes of the entry, the content of the file, and what the refusal of `check` has.
BROKEN: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "missing": ({"bench": ["recipes/evidence/none.jsonl"]}, None, "recipes/evidence/none.jsonl is not a file"),
    "no evidence": ({}, "text\n", "run.jsonl, line 1"),
    "empty": ({}, "", "no run record"),
    "outside": ({"bench": ["../x.jsonl"]}, None, "a relative path without .."),
    "unknown part": ({"differs": {"weather": WHY}}, None, "unknown key weather"),
    "no report": ({"report": "recipes/evidence/none.html"}, None, f"vllm-spark bench report {PATH} -o"),
    "other report": ({"report": "recipes/mine.yml"}, None, "other runs — expected: the report of run 0123456789ab"),
    "second source": ({"date": "2026-11-23"}, None, "evidence[0].date: set beside bench"),
}  # fmt: skip


@pytest.mark.parametrize(("entry", "content", "expected"), BROKEN.values(), ids=BROKEN)
def test_broken_evidence_is_refused(
    entry: dict[str, Any], content: str | None, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = folder(tmp_path, entry, content)
    assert main(["check", str(recipes / "mine.yml")]) == 1
    shown = capsys.readouterr().err
    assert expected in shown
    assert "Fix:" in shown


@pytest.mark.parametrize(
    "entry",
    [
        {"report": "docs"},
        {"report": "docs", "date": "2026-11-23", "differs": {"gpu": WHY}},
        {"date": "2026-11-23", "hosts": "two"},
    ],
)
def test_an_entry_without_files_has_date_hosts_and_report(entry: dict[str, Any], tmp_path: Path) -> None:
    recipes = folder(tmp_path)
    document = yaml.load((recipes / "mine.yml").read_text(), yaml.CSafeLoader) | {"evidence": [entry]}
    (recipes / "mine.yml").write_text(yaml.safe_dump(document))
    with pytest.raises(RefusedError) as refused:
        loader.read(recipes / "mine.yml")
    assert "expected: date, hosts and report, or files of the bench" in str(refused.value)


def test_a_copy_of_a_recipe_keeps_the_evidence_of_the_toolkit(tmp_path: Path) -> None:
    copy_ = tmp_path / "gemma-4-26b-a4b-fp8.yml"
    copy_.write_text((paths.RECIPES / copy_.name).read_text())
    assert recipe_evidence.refusals(loader.read(copy_), tmp_path) == []


# Decode of the recipe's evidence is 6.9: measured decode, changes of the entry, and judgements of decode.
REFERENCE: dict[str, tuple[float, dict[str, Any], list[str]]] = {
    "alike": (6.5, {}, ["same"]),
    "slower": (6.0, {}, ["worse"]),
    "faster": (8.0, {}, ["better"]),
    "another GPU": (6.0, {"differs": {"gpu": WHY}}, []),
}


@pytest.mark.parametrize(("decode", "entry", "judgements"), REFERENCE.values(), ids=REFERENCE)
def test_a_run_is_judged_by_the_evidence_of_its_recipe(
    decode: float, entry: dict[str, Any], judgements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = folder(tmp_path, entry)
    monkeypatch.setattr(paths, "RECIPES", recipes)
    own = run_record("2026-11-24T10:00:00Z", id="f" * 12, key=OWN_KEY, subject=OWN_SUBJECT, host=GB10)
    judged = verdict.verdict(parsed(own, cell_record({"decode": [decode]})))
    assert [row.judgement for row in judged.others["evidence"] if row.metric == "decode"] == judgements
    assert "not compared" not in " ".join(judged.notes)


def test_broken_evidence_of_a_recipe_is_a_note_of_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RECIPES", folder(tmp_path, content="text\n"))
    own = run_record(id="f" * 12, key=OWN_KEY, subject=OWN_SUBJECT, host=GB10)
    judged = verdict.verdict(parsed(own, cell_record({"decode": [6.9]})))
    assert judged.others["evidence"] == ()
    assert "the recipe's evidence is not compared: " in " ".join(judged.notes)
