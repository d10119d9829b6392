"""The report of a bench in a real browser: nothing cut, nothing overlapping, no violation of its policy, printable.

`make browser` installs the browser and runs them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, chromium

from fakes.bench_evidence import DENSE, MIXTURE, Bench, compiled, evidence_of, soak, standard
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report.material import Forecast
from vllm_spark.bench.report.page import page
from waiting import until

MEASURE = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")
WIDTHS = {"phone": 360, "tablet": 820, "desktop": 1280}
PAIR = ("spark1", "spark2")
FORECAST = Forecast("chat p2048 o128 d0 s1", {"bytes": 24.0, "layers": 7.5, "all-reduce": 3.0, "drafter": 9.8})
# Names that are markup, long without a place to break, or written from right to left.
HOSTILE = {"deployment": "<script>document.title='run'</script>", "served_name": "x" * 200}


def run(bench: Bench) -> Evidence:
    return evidence_of(standard(bench))


REPORTS = {
    "dense": lambda: page([run(Bench(DENSE))]),
    "mixture": lambda: page([run(Bench(MIXTURE))], verdict="As fast as the forecast.", forecast=FORECAST),
    "two runs": lambda: page([run(Bench(MIXTURE, 2)), run(Bench(MIXTURE, 3, slower=1.18))], forecast=FORECAST),
    "pair": lambda: page([run(Bench(DENSE, 2, hosts=PAIR)), run(Bench(DENSE, 3, hosts=PAIR))]),
    "six runs": lambda: page([run(Bench(MIXTURE, seed, slower=1 + seed / 50)) for seed in range(6)]),
    "compiled": lambda: page([evidence_of(compiled(Bench(MIXTURE, seed))) for seed in range(2)]),
    "soak": lambda: page([evidence_of(soak(Bench(MIXTURE, hosts=PAIR), hours=6))]),
    "hostile": lambda: page([run(Bench(MIXTURE, subject=HOSTILE, key={"model": "\u202e" + "مرحبا " * 30}))]),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture(scope="module", params=REPORTS)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(REPORTS[request.param](), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_is_cut_and_nothing_complains(browser: Chromium, report: Path, width: int, dark: bool) -> None:
    browser.show(report, width, dark=dark)
    measured = browser.evaluate(MEASURE)
    assert measured["faults"] == []
    assert measured["texts"] > 50
    assert browser.complaints() == []
    assert browser.evaluate("document.title").endswith(": benchmark report")


def test_it_prints_on_paper(browser: Chromium, report: Path) -> None:
    browser.show(report, 1040, media="print")
    assert browser.evaluate(MEASURE)["faults"] == []
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", _plain(pdf))) <= 40


def _plain(pdf: bytes) -> bytes:
    """Return a PDF with its compressed parts unpacked, as far as they can be."""
    parts = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL)
    return pdf + b"".join(zlib.decompressobj().decompress(part) for part in parts if part[:1] == b"\x78")


def test_the_policy_stops_what_is_not_the_reports_own(browser: Chromium, tmp_path: Path) -> None:
    """The checks above can fail: a script, a picture and a style of somebody else are stopped and reported."""
    html = page([run(Bench(DENSE))])
    added = '<script>document.title = "ran"</script><img src="http://127.0.0.1:9/x.png"><p style="color: red">x</p>'
    file = tmp_path / "report.html"
    file.write_text(html.replace("</main>", f"{added}</main>"), encoding="utf-8")
    browser.show(file, 820)
    # They come from several processes of the browser.
    until(lambda: "\n".join(browser.complaints()).count("Content Security Policy") >= 3)
    assert browser.evaluate("document.title") != "ran"


def test_a_label_outside_its_drawing_is_noticed(browser: Chromium, tmp_path: Path) -> None:
    html = page([run(Bench(DENSE))])
    broken = html.replace('text-anchor="end" class="name x"', 'class="name x"', 1)
    assert broken != html
    file = tmp_path / "report.html"
    file.write_text(broken, encoding="utf-8")
    browser.show(file, 1280)
    assert any(fault.startswith("cut: ") for fault in browser.evaluate(MEASURE)["faults"])


def test_the_table_scrolls_below_its_first_column(browser: Chromium, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page([run(Bench(MIXTURE)), run(Bench(MIXTURE, 2))]), encoding="utf-8")
    browser.show(file, WIDTHS["phone"])
    moved = browser.evaluate(
        "(() => { const area = document.querySelector('.scroll'), head = area.querySelector('tbody th');"
        " const before = head.getBoundingClientRect().left; area.scrollLeft = 200;"
        " return [area.scrollLeft, head.getBoundingClientRect().left - before]; })()"
    )
    assert moved == [200, 0]
