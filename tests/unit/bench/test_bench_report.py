"""The report of a bench as a document: complete, escaped, small, and without anything from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from html.parser import HTMLParser
from typing import Any

import pytest

from fakes.bench_evidence import DENSE, MIXTURE, Bench, compiled, evidence_of, soak, standard
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import facts, plots, table
from vllm_spark.bench.report.page import UNKNOWN_VERDICT, page
from vllm_spark.bench.report.svg import SHAPE_COUNT, SHAPES
from vllm_spark.bench.report.sweep import Drawn
from vllm_spark.node.bench.leading import leading_metrics

PLOTS = ["streams", "depth", "first-token", "acceptance", "speculation", "host"]
TABLES = ["start", "cells", "subject"]
LIMIT = 500_000
EVIL = '</style><script>alert("x")</script>\u202e\x07'


class Document(HTMLParser):
    """Elements of a page in order: (tag, attributes, text until the next tag)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], str]] = [("", {}, "")]
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))
        if tag not in {"meta", "wbr"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.elements.append(("", {}, ""))

    def handle_data(self, data: str) -> None:
        tag, attributes, words = self.elements[-1]
        self.elements[-1] = (tag, attributes, words + data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """Return attributes and text of the elements with this tag."""
        return [(attributes, words) for name, attributes, words in self.elements if name == tag]


def run(bench: Bench) -> Evidence:
    return evidence_of(standard(bench))


@pytest.fixture(scope="module")
def one() -> Evidence:
    return run(Bench(MIXTURE))


@pytest.fixture(scope="module")
def two(one: Evidence) -> Sequence[Evidence]:
    return [one, run(Bench(MIXTURE, 2, slower=1.2))]


def drawn(runs: Sequence[Evidence]) -> dict[str, Drawn]:
    return {plot.id: made for plot, made in plots.drawn(runs)}


def test_the_page_has_every_plot_in_order_and_every_cell(one: Evidence) -> None:
    document = Document(page([one], verdict="As fast as before."))
    assert [attributes["id"] for attributes, _ in document.all("h2")] == ["warnings", *PLOTS, *TABLES]
    assert document.open == []
    words = " ".join(text for _, _, text in document.elements)
    assert "As fast as before." in words
    assert {cell["cell"]["id"].split()[0] for cell in one.cells.values()} <= set(words.split())
    assert "the server answered 429: too many requests" in words
    assert "spark1 was throttled by temperature for 12 s" in words
    assert "the spread of 1.4 % stayed above 1 % for 7 runs" in words


def test_a_plot_without_data_is_absent() -> None:
    bench = Bench(DENSE)
    cells = [bench.cell(depth=0), bench.cell(depth=4096)]
    for cell in cells:
        cell["samples"] = {}
    html = page([evidence_of([bench.first(), *cells])])
    present = [attributes["id"] for attributes, _ in Document(html).all("h2")]
    assert present == ["depth", "first-token", "cells", "subject"]
    assert "interrupted" in html
    assert UNKNOWN_VERDICT in html


def test_a_run_without_cells_has_a_page() -> None:
    html = page([evidence_of([Bench(DENSE).first()])])
    assert [attributes["id"] for attributes, _ in Document(html).all("h2")] == ["subject"]
    assert "no cells" in html


def test_nothing_comes_from_outside(two: Sequence[Evidence]) -> None:
    html = page(two)
    document = Document(html)
    tags = {tag for tag, _, _ in document.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use", "a"}
    names = {name for _, attributes, _ in document.elements for name in attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "href", "xlink:href", "style"}
    (style,) = (words for _, words in document.all("style"))
    assert not re.search(r"url\(|@import", style)
    (policy,) = (each["content"] for each, _ in document.all("meta") if each.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_untrusted_words_are_escaped_and_visible() -> None:
    bench = Bench(MIXTURE, subject={"deployment": EVIL, "served_name": EVIL}, key={"model": EVIL})
    records = standard(bench)
    for cell in records[1:-1]:
        cell["cell"]["id"] += EVIL
        cell["cell"]["corpus"] += EVIL
        cell["faults"] = [{"id": EVIL, "what": EVIL}]
        cell["phases"] = {phase + EVIL: seconds for phase, seconds in cell["phases"].items()}
        cell["samples"] = {host + EVIL: samples for host, samples in cell["samples"].items()}
    html = page([evidence_of(records)] * 2, verdict=EVIL)
    document = Document(html)
    assert document.open == []
    assert document.all("script") == []
    assert len(document.all("style")) == 1
    assert "\u202e" not in html
    assert "\x07" not in html
    assert "\\u202e\\u0007" in html


def test_samples_without_a_time_are_left_out() -> None:
    whole = standard(Bench(MIXTURE))
    more = deepcopy(whole)
    for record in more[1:-1]:
        for host, samples in record["samples"].items():
            record["samples"][host] = [one for sample in samples for one in ({"throttle": "x", "sm_mhz": 9.0}, sample)]
    assert drawn([evidence_of(more)])["host"].panels == drawn([evidence_of(whole)])["host"].panels


def test_a_soak_shows_decode_along_the_run() -> None:
    runs = [evidence_of(soak(Bench(MIXTURE, seed, profile="soak"), hours=2)) for seed in (1, 2)]
    together = drawn(runs[:1])["along"]
    assert [words for _, _, words in together.legend] == [
        "chat, 2k in, 128 out",
        "code, 2k in, 128 out",
        "chat, 2k in, 128 out, 4 streams",
    ]
    assert len(together.panels) == 1
    apart = drawn(runs)["along"]
    assert [title.partition(":")[0] for title, _ in apart.panels] == [words for _, _, words in together.legend]
    assert [key for _, key, _ in apart.legend] == ["A", "B"]


@pytest.mark.slow
def test_the_table_of_a_soak_has_rows_of_every_cell_and_every_fault() -> None:
    records = soak(Bench(MIXTURE, profile="soak"), hours=10, cell_seconds=30)
    records[500]["faults"] = [{"id": "spread", "what": "a single warning"}]
    runs = [evidence_of(records)]
    rows = table.rows(runs, ["decode"])
    assert len(records) > 1000
    assert len(rows) < 220
    counts = Counter(table.kind(row.id) for row in rows)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert [what for _, _, what in table.warnings(runs)] == ["a single warning"]


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [("spark1",), ("spark1", "spark2")])
def test_the_page_of_a_soak_is_small(hosts: Sequence[str]) -> None:
    runs = [evidence_of(soak(Bench(MIXTURE, seed, hosts=hosts, profile="soak"), hours=8)) for seed in (1, 2)]
    assert sum(len(samples) for cell in runs[0].cells.values() for samples in cell["samples"].values()) > 27_000 * len(
        hosts
    )
    html = page(runs)
    assert len(html.encode()) < LIMIT
    assert "cells without a fault are left out" in html


def test_the_page_of_six_runs_is_small(one: Evidence) -> None:
    runs = [one, *(run(Bench(MIXTURE, seed)) for seed in range(2, SHAPE_COUNT + 1))]
    assert len(page(runs).encode()) < LIMIT


def test_each_panel_names_both_axes_and_itself(two: Sequence[Evidence]) -> None:
    made = drawn(two)
    assert list(made) == PLOTS
    for id_, plot in made.items():
        for _, svg in plot.panels:
            for part in re.findall(r"<svg.*?</svg>", svg, re.DOTALL):
                attributes, _ = Document(part).all("svg")[0]
                assert attributes["role"] == "img"
                assert attributes["aria-label"]
                assert len(Document(part).all("desc")[0][1]) > 3
                axes = {each["class"]: words for each, words in Document(part).all("text") if each.get("class")}
                assert axes["name x"], id_
                assert axes["name y"], id_


def test_every_point_has_a_tooltip(one: Evidence) -> None:
    for id_ in ("streams", "depth", "first-token", "speculation"):
        for _, svg in drawn([one])[id_].panels:
            assert svg.count("<title>") == svg.count('class="hit"') > 1


def test_series_differ_without_colour(two: Sequence[Evidence]) -> None:
    svg = drawn(two)["streams"].panels[0][1]
    document = Document(svg)
    markers = {each["d"] for each, _ in document.all("path") if str(each.get("class")).startswith("m ")}
    assert len(markers) == 2
    assert [key for _, key, _ in drawn(two)["streams"].legend] == ["A", "B"]
    assert len(set(SHAPES)) == SHAPE_COUNT
    style = re.findall(r"\.l\.s\d \{ stroke-dasharray: ([^;]+);", page(two))
    assert len(set(style)) == len(style) == SHAPE_COUNT - 1


def test_runs_are_over_each_other_and_groups_of_one_run_too(one: Evidence, two: Sequence[Evidence]) -> None:
    assert [key for _, key, _ in drawn(two)["depth"].legend] == ["A", "B"]
    assert [words for _, _, words in drawn([one])["acceptance"].legend] == ["chat", "code", "json", "long"]
    assert len(drawn([one])["acceptance"].panels) == 1
    assert [title for title, _ in drawn(two)["acceptance"].panels] == ["chat", "code", "json", "long"]


BROKEN: dict[str, Any] = {
    "no total": {"total": None},
    "no values": {"decode": {"unit": "tok/s", "median": 7.0, "spread": None, "values": []}},
    "not a number": {"decode": {"unit": "tok/s", "median": float("nan"), "spread": None, "values": [float("nan")]}},
    "acceptance without positions": {
        "acceptance_by_position": {"unit": "1", "median": [], "spread": None, "values": []}
    },
    "unknown acceptance": {"acceptance_by_position": {"unit": "1", "median": None, "spread": None, "values": []}},
    "zero": {"decode": {"unit": "tok/s", "median": 0.0, "spread": 0.0, "values": [0.0, 0.0]}},
    "no time": {"first_chunk": {"unit": "ms", "median": 0.0, "spread": None, "values": [0.0]}},
}


def odd(figures: dict[str, Any]) -> Evidence:
    """Return a run of three cells, two of which have these figures."""
    bench = Bench(MIXTURE)
    cells = [bench.cell(streams=streams) for streams in (1, 2, 4)]
    for cell in cells[:2]:
        cell["figures"] = {name: known for name, known in (cell["figures"] | figures).items() if known}
    return evidence_of([bench.first(), *cells])


@pytest.mark.parametrize("figures", BROKEN.values(), ids=BROKEN)
def test_figures_that_are_missing_or_extreme_leave_the_others(figures: dict[str, Any]) -> None:
    html = page([odd(figures)])
    assert "nan" not in html.lower()
    assert '<h2 id="cells">' in html
    assert "2 streams" in html


@pytest.mark.parametrize("name", sorted(BROKEN.keys() - {"no values", "not a number"}))  # evidence.py refuses these
def test_they_are_compared_as_far_as_they_can_be(name: str) -> None:
    html = page([odd(BROKEN[name]), run(Bench(MIXTURE, 2))])
    assert '<h2 id="compared">' in html
    assert "nan" not in html.lower()


def test_what_a_cell_is_measured_for_is_bold(one: Evidence) -> None:
    metrics = [metric for metric, _, _ in table.columns([one]).shown]
    leads = {row.id: [value.leads for value in row.results[0].values if value] for row in table.rows([one], metrics)}
    expected = {
        id_: len(set(leading_metrics(cell["cell"])) & set(cell["figures"]))
        for id_, cell in one.cells.items()
        if cell["state"] == "measured"
    }
    assert {name: sum(leads[name]) for name in expected} == expected
    assert 1 in expected.values()
    assert page([one]).count('class="n lead"') == sum(expected.values())


def test_facts_that_differ_are_first_and_equal_ones_have_one_value(two: Sequence[Evidence]) -> None:
    rows = facts.subject(two).rows
    differing = [name for name, values in rows if len(values) > 1]
    assert differing == [name for name, _ in rows[: len(differing)]]
    assert "launch" in differing
    assert "model" not in differing
    assert all(values != ("unknown",) for _, values in rows)


def test_a_start_has_its_phases_and_their_sum(two: Sequence[Evidence]) -> None:
    table_ = facts.starts(two)
    assert table_.heads == ("phase", "cold A", "warm A", "cold B", "warm B")
    *phases, (last, whole) = table_.rows
    assert last == "until the first token"
    for n, total in enumerate(whole):
        assert sum(float(values[n]) for _, values in phases if values[n] != "—") == pytest.approx(
            float(total), rel=0.02
        )


def test_headers_of_tables_have_a_scope(two: Sequence[Evidence]) -> None:
    cells = Document(page(two)).all("th")
    assert {each["scope"] for each, _ in cells} == {"col", "row"}


def test_eager_and_compiled_are_lines_of_their_own() -> None:
    run_of_modes = evidence_of(compiled(Bench(MIXTURE)))
    plot = drawn([run_of_modes])["mode"]
    assert [title for title, _ in plot.panels] == ["Decode", "Step", "Prefill"]
    assert [words for _, _, words in plot.legend] == ["mode eager", "mode compiled"]
    assert all(svg.count('class="hit"') == 4 for _, svg in plot.panels)


def test_a_throttling_is_a_triangle_and_words(one: Evidence, two: Sequence[Evidence]) -> None:
    for runs, said in (([one], r"spark1 after .* in cell \d+ \("), (two, "spark1 of A after .*, spark1 of B after ")):
        host = drawn(runs)["host"]
        [svg] = [svg for title, svg in host.panels if title.startswith("spark1 · GPU clock: ")]
        assert svg.count('class="alert"') == len(runs)
        assert re.search(said, host.note)


def test_the_verdict_begins_with_a_capital(one: Evidence) -> None:
    assert "Good: 3 figures are as before." in page([one], verdict="good: 3 figures are as before.")
