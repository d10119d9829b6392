"""The page of figures in a real Chromium, served by a real edge, which lets it run its own script and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from recorded_site import Site

from browser.chromium import Chromium, chromium
from fakes.running_edge import KEY
from vllm_spark.core import paths
from vllm_spark.edge import authority
from waiting import until

PAGE = (paths.TEMPLATES / "metrics-page.html").read_text(encoding="utf-8")
WIDTHS = {"desktop": 1280, "phone": 390}
MOST_BYTES = 150_000
# uPlot 1.6.32 of npm, unchanged: `npm pack uplot@1.6.32`, dist/uPlot.iife.min.js and dist/uPlot.min.css without the end
# of their last line -> the number of their lines, and their sha256.
UPLOT = {
    "script": (2, "9a6a7d50b066b6c083ddf74930c8e3908fdf5b7d1a660969dd15e0360918006d"),
    "style": (1, "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
}


@contextmanager
def browser(site: Site, folder: Path) -> Iterator[Chromium]:
    """Yield a browser that trusts the authority of the site, as an owner's does after `vllm-spark trust`."""
    store = folder / ".pki" / "nssdb"
    store.mkdir(parents=True)
    certutil = ["certutil", "-d", f"sql:{store}"]
    subprocess.run([*certutil, "-N", "--empty-password"], check=True)
    for number, one in enumerate(authority.certificates((site.edge.folder / "ca.crt").read_text())):
        file = folder / f"{number}.crt"
        file.write_text(authority.pem(one))
        subprocess.run([*certutil, "-A", "-n", f"site {number}", "-t", "C,,", "-i", str(file)], check=True)
    with chromium(folder) as running:
        yield running


def opened(page: Chromium, site: Site, width: int = 1280, *, dark: bool = False) -> None:
    page.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
    page.command(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    )
    page.open(f"https://127.0.0.1:{site.edge.port}/watch")


def typed(page: Chromium, key: str) -> None:
    page.evaluate(f"byId('key').value = {json.dumps(key)}; byId('ask').requestSubmit()")


def text_of(page: Chromium, id_: str) -> str:
    return str(page.evaluate(f"document.getElementById('{id_}').innerText"))


def picture(page: Chromium, name: str) -> None:
    """Keep a picture for a person: PICTURES=FOLDER pytest tests/metrics/test_page.py."""
    if folder := os.environ.get("PICTURES"):
        Path(folder, f"{name}.png").write_bytes(page.picture())


def violations(page: Chromium, site: Site) -> list[str]:
    """Return what the browser has to say, but the requests of this edge. Chromium ends requests when a network device
    of this machine comes or goes, as those of containers do; the page asks again by itself."""
    own = f"request of https://127.0.0.1:{site.edge.port}/watch"
    return [one for one in page.complaints() if not one.startswith(own) and "ERR_NETWORK_CHANGED" not in one]


def test_the_page_is_small_and_has_the_library_unchanged_with_its_licence() -> None:
    assert len(PAGE.encode()) < MOST_BYTES
    assert "The MIT License (MIT)" in PAGE
    for tag, (lines, digest) in UPLOT.items():
        inline = re.search(f"<{tag}>(.*?)</{tag}>", PAGE, re.DOTALL)
        assert inline is not None
        library = "\n".join(inline[1].splitlines()[:lines])
        assert hashlib.sha256(library.encode()).hexdigest() == digest, tag
    assert re.findall(r"(?:src|href)=\"(?!data:)[^\"]*\"|https?://(?!github\.com/leeoniya)[^\s\"']+", PAGE) == []


def test_a_stranger_sees_a_question_for_a_key_and_no_figure(calm: Site, tmp_path: Path) -> None:
    with browser(calm, tmp_path) as page:
        opened(page, calm)
        assert page.evaluate("[byId('ask').hidden, byId('figures').hidden]") == [False, True]
        assert violations(page, calm) == []
        typed(page, "sk-of-nobody")
        until(lambda: text_of(page, "refused") == "The edge does not know this key.")
        assert page.evaluate("sessionStorage.getItem('key')") is None
        assert page.evaluate("localStorage.length + document.cookie.length") == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_person_with_a_key_sees_the_trouble_first(calm: Site, tmp_path: Path, width: str, *, dark: bool) -> None:
    with browser(calm, tmp_path) as page:
        opened(page, calm, WIDTHS[width], dark=dark)
        typed(page, KEY)
        until(lambda: "trouble" in text_of(page, "verdict"))
        assert text_of(page, "verdict").count("demo on spark1: gave up") == 1
        assert "✖ gave up" in text_of(page, "states")
        assert "gemma" in text_of(page, "changes")
        # Every chart has figures, but the pressure on a kernel without it.
        until(lambda: page.evaluate("document.querySelectorAll('figure canvas').length") >= 10)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        # Lines differ without colour.
        dashes = page.evaluate("plots.map(plot => plot.series.slice(1).map(line => String(line.dash)))")
        assert all(len(set(lines)) == len(lines) for lines in dashes)
        assert violations(page, calm) == []
        picture(page, f"gave-up-{width}-{'dark' if dark else 'light'}")
        page.evaluate("document.querySelector('[data-range=day]').click()")
        until(
            lambda: page.evaluate(
                "performance.getEntriesByType('resource').some(one => one.name.includes('/watch/day/'))"
            )
        )
        # The click loads the page anew, which would end a script that waits for it.
        page.evaluate("void setTimeout(() => document.getElementById('forget').click())")
        until(lambda: page.evaluate("sessionStorage.getItem('key')") is None)


def test_a_healthy_site_says_so_and_a_recorder_that_is_gone_too(site: Site, tmp_path: Path) -> None:
    with browser(site, tmp_path / "home") as page:
        opened(page, site)
        typed(page, KEY)
        until(lambda: text_of(page, "verdict") == "✔ All is well")
        picture(page, "healthy-desktop-light")
        site.recorder.kill()
        site.recorder.wait()
        page.evaluate("look()")
        until(lambda: "No new figures since" in text_of(page, "verdict"))
        picture(page, "no-recorder-desktop-light")
