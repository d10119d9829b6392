"""`vllm-spark runbook`: which page it prints, and which it lists."""

from __future__ import annotations

import pytest

import project_files
from vllm_spark.cli import main, runbook
from vllm_spark.core import paths, strict_yaml

RUNBOOKS = [file.stem for file in paths.RUNBOOKS.glob("*.md")]
TEXTS = runbook.all_pages()
OWNERS = strict_yaml.load_own((project_files.DATA / "runbook-messages.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("typed", ["swap", "docs/runbooks/swap.md", "swap.md"])
def test_a_name_as_a_message_prints_it_is_the_page(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runbook", typed]) == 0
    assert capsys.readouterr().out == TEXTS["swap"]


# What an owner reads in a message or sees -> the page that helps.
FIRST = {
    "model-missing": "model-missing",
    "RPC call to sample_tokens timed out": "swap",
    "the spark swaps": "swap",
    "there is no room on the disk": "disk-full",
    "there is no command": "wrong-command",
    "duplicate mount point": "container-start",
}


@pytest.mark.parametrize("words", FIRST)
def test_the_page_of_a_symptom_is_one_of_the_first_three(words: str) -> None:
    assert FIRST[words] in runbook.best(words.lower().split(), TEXTS)[:3]


@pytest.mark.slow
def test_each_page_is_found_by_its_title() -> None:
    missed = [
        name
        for name, text in TEXTS.items()
        if name in RUNBOOKS and name not in runbook.best(runbook.title(text).lower().split(), TEXTS)[: runbook.LISTED]
    ]
    assert missed == []


def test_a_list_ends_with_the_command_of_its_first_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runbook", "port"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == runbook.LISTED + 1
    assert lines[-1] == f"Next: vllm-spark runbook {lines[0].split()[0]}"


@pytest.mark.parametrize(("typed", "fix"), [("swpa", "Fix: vllm-spark runbook swap"), ("zzzz", "other words")])
def test_words_that_no_page_has(typed: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runbook", typed]) == 1
    assert f"no page has '{typed}'" in (told := capsys.readouterr().err)
    assert fix in told


@pytest.mark.parametrize("row", OWNERS["messages"], ids=lambda row: row["line"][:40])
def test_a_message_has_the_page_that_the_doctor_names(row: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runbook", row["line"]]) == 0
    told = capsys.readouterr().out
    assert told.endswith(TEXTS[row["page"]])
    assert "\nFix: " in told.removesuffix(TEXTS[row["page"]])


@pytest.mark.parametrize(("words", "pages"), OWNERS["words"].items())
def test_an_owner_s_words_find_the_page_in_every_folder(words: str, pages: list[str]) -> None:
    assert set(runbook.best(words.split(), TEXTS)[:3]) & set(pages)


def test_a_page_of_operations_has_its_folder_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runbook", "docs/operations/metrics.md"]) == 0
    assert capsys.readouterr().out == TEXTS["operations/metrics"]
    assert main.main(["runbook", "metrics"]) == 0
    assert capsys.readouterr().out == TEXTS["metrics"]
