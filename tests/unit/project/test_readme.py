"""README's first screen: the owner's path, what it prints, and that a verb is a playbook and a command."""

from __future__ import annotations

import re

import pytest
import yaml

from fakes.gate_requests import gate_request
from lab.site import conf
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.verify import registry, report, verification
from vllm_spark.verify.startup_phases import Phase
from vllm_spark.verify.verdict import Verdict

TEXT = (paths.ROOT / "README.md").read_text()
SCREEN = 40  # lines of a first screen of a forge
PATH = "## From a factory Spark to an answer"
BESIDE = "## Two as one"
FIRST_PAGE = (paths.ROOT / "docs/operations/first-deployment.md").read_text()


def block(heading: str, language: str = "", text: str = TEXT) -> list[str]:
    """Return the lines of the first block with this language below a heading."""
    below = text[text.index(f"{heading}\n") :]
    found = re.search(rf"^```{language}\n(.*?)^```$", below, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].splitlines()


def plain(text: str) -> str:
    """Return a text without backticks and line breaks."""
    return " ".join(text.replace("`", "").split())


def test_the_first_screen_leads_from_a_factory_spark_to_an_answer() -> None:
    commands = block(PATH)
    assert [line.split()[:2] for line in commands[1:]] == [["vllm-spark", "init"], ["vllm-spark", "up"]]
    assert commands[0].startswith("make setup")
    screen = TEXT.splitlines()[:SCREEN]
    assert [line for line in [*commands, *block(PATH, "text")] if line not in screen] == []


def test_the_first_page_of_the_site_has_the_commands_of_readme() -> None:
    shown = conf.first_commands()
    assert shown.startswith(f"{PATH}\n")
    assert shown.splitlines()[-1 - len(block(PATH)) : -1] == block(PATH)
    assert "](" not in shown, "a link of README leads elsewhere on the site"


def test_the_owners_path_stands_before_the_catalogue_and_the_sandbox() -> None:
    order = (PATH, BESIDE, "| you have |", "\nmake deploy", "\nmake test")
    places = [TEXT.index(text) for text in order]
    assert places == sorted(places)


def test_what_the_path_prints_is_what_the_toolkit_prints() -> None:
    answered = Verdict("answer", "0", True, "What is the capital of France? Answer with one word. Paris")
    request = gate_request(served_name="tiny-gemma4", edge={"tls": "own-ca"}, socket="/s", bind="")
    closing = report.closing(request, [answered], "10.231.0.11", ".sandbox/edge/ca.crt")
    shown = block(PATH, "text")
    summary = re.search(r"✓ (\d+) gates pass: (.*)", shown[-4])
    assert summary is not None
    gates = summary[2].split(", ")
    passed = [Verdict(gate, "", True, "") for gate in [*gates, *gates[-1:] * (int(summary[1]) - len(gates))]]
    assert shown[-4] == f"spark1  {verification.together(passed)}"
    assert set(gates) <= {gate.name for gate in registry.GATES}
    assert shown[-3:-1] == closing.splitlines()[:2]
    assert closing.splitlines()[2].startswith(shown[-1].removesuffix(" …"))
    phases = [found[1] for line in shown if (found := re.match(r"spark1  (\D+?)(?: \d+ %)?  \d\d:\d\d of ", line))]
    assert phases == [phase.label for phase in (Phase.STARTING, Phase.LOADING_WEIGHTS, Phase.WARMING_UP)]


def test_one_sentence_says_that_a_verb_is_a_playbook_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parse(["--help"])
    assert main.RULE in capsys.readouterr().out
    assert plain(main.RULE) in plain(TEXT)


def test_the_scenario_types_blocks_that_are_there() -> None:
    owner = yaml.load((paths.ROOT / "molecule/factory/vars/owner.yml").read_text(), yaml.CSafeLoader)
    headings = re.findall(r"(readme|steps)\.split\('(## [^']+)'\)", " ".join(str(value) for value in owner.values()))
    assert [page for page, _ in headings] == ["steps", "steps", "readme"]
    texts = {"readme": TEXT, "steps": FIRST_PAGE}
    assert [one for page, one in headings if not all(line.split()[0] for line in block(one, text=texts[page]))] == []


def test_a_minute_is_enough_to_read_it() -> None:
    """Issue 55 wants about 1,000 words, tables included; 700 of them are prose."""
    assert len(re.sub(r"^```.*?^```$|^\|.*$", "", TEXT, flags=re.MULTILINE | re.DOTALL).split()) < 700
    assert len(TEXT.split()) < 1050
    assert "ansible-playbook deploy.yml -K -l spark1,spark2" in block(BESIDE)
