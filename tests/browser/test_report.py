"""The report of a bench in a real browser: nothing cut, nothing overlapping, no violation of its policy, printable.

`make browser` installs the browser and runs them."""

from __future__ import annotations

import os
import re
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, chromium

from fakes.bench_evidence import DENSE, MIXTURE, Bench, compiled, evidence_of, soak, standard
from vllm_spark.bench import evidence
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report.page import page
from vllm_spark.core import paths
from waiting import until

MEASURE = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")
WIDTHS = {"phone": 360, "tablet": 820, "laptop": 1280, "wide": 1680}
COLUMNS = {"phone": 1, "tablet": 2, "laptop": 3, "wide": 3}
RECORDED = paths.RECIPES / "evidence"
PAIR = ("spark1", "spark2")
# Names that are markup, long without a place to break, or written from right to left.
HOSTILE = {"deployment": "<script>document.title='run'</script>", "served_name": "x" * 200}


def run(bench: Bench) -> Evidence:
    return evidence_of(standard(bench))


def recorded(*files: str) -> list[Evidence]:
    return [evidence.read(RECORDED / f"{file}.jsonl") for file in files]


REPORTS = {
    "two servers": lambda: page(
        recorded(*(f"h200-bench/26b-a4b-{name}.standard" for name in ("fp8", "nvfp4-marlin"))),
        verdict="worse: decode of chat p512 o384 d0 s1 is 237.9 tok/s; garbage accepted in 7 of 8 cells.",
    ),
    "three profiles": lambda: page(
        recorded(*(f"h100-bench/31b-fp8.{profile}" for profile in ("standard", "depth", "streams")))
    ),
    "dense": lambda: page([run(Bench(DENSE))]),
    "mixture": lambda: page([run(Bench(MIXTURE))], verdict="As fast as the forecast."),
    "two runs": lambda: page([run(Bench(MIXTURE, 2)), run(Bench(MIXTURE, 3, slower=1.18))]),
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
        "(() => { const area = document.querySelector('[aria-labelledby=cells] .scroll');"
        " const head = area.querySelector('tbody th');"
        " const before = head.getBoundingClientRect().left; area.scrollLeft = 200;"
        " return [area.scrollLeft, head.getBoundingClientRect().left - before]; })()"
    )
    assert moved == [200, 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_three_tiles_are_above_the_fold_and_plots_have_columns(browser: Chromium, tmp_path: Path, width: str) -> None:
    file = tmp_path / "report.html"
    file.write_text(REPORTS["two servers"](), encoding="utf-8")
    browser.show(file, WIDTHS[width], height=800)
    bottoms = browser.evaluate(
        "[...document.querySelectorAll('.tiles > div')].map((tile) => tile.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 3
    assert max(bottoms) <= 800
    columns = browser.evaluate("getComputedStyle(document.querySelector('.plots')).gridTemplateColumns")
    assert len(columns.split()) == COLUMNS[width]


def test_the_comparison_fits_a_phone(browser: Chromium, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(REPORTS["two servers"](), encoding="utf-8")
    browser.show(file, WIDTHS["phone"])
    area = "document.querySelector('.scroll:has(.compared)')"
    assert browser.evaluate(f"{area}.scrollWidth - {area}.clientWidth") == 0


@pytest.mark.skipif("VNU" not in os.environ, reason="VNU is not the path of vnu.jar, the checker of the W3C")
def test_the_checker_of_the_w3c_finds_no_error(report: Path) -> None:
    command = ["java", "-jar", os.environ["VNU"], "--errors-only", "--format", "text", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # SVG 2 has this property, the checker's CSS does not.
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error") and "paint-order" not in line]
    assert errors == []
    assert "checking completed" in done.stderr
