"""The site of docs/ from disk, in a real browser: nothing wider than the screen, a search, four parts, no other host.

`make browser` builds it and runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from chromium import Chromium, chromium

from vllm_spark.core import paths
from waiting import until

SITE = paths.ROOT / "build" / "site"
WIDTHS = {"phone": 360, "tablet": 820, "desktop": 1400}
PHONE = 390
# Node.DOCUMENT_POSITION_FOLLOWING, and the height of a small phone.
FOLLOWS, SCREEN_HEIGHT = 4, 640
PAGES = sorted(
    page.relative_to(paths.ROOT / "docs").with_suffix(".html") for page in (paths.ROOT / "docs").rglob("*.md")
)
# What scrolls or is cut beside the page itself. A wide table scrolls in its own frame.
WIDE = """(() => { const wide = (element) => element.scrollWidth > element.clientWidth + 1;
 return [document.documentElement, ...document.querySelectorAll("pre, article p, article li, h1, h2")].filter(wide)
  .map((element) => `${element.scrollWidth} px in ${element.clientWidth}: ${element.textContent.slice(0, 60)}`); })()"""
# Scripts, styles, fonts and pictures that a page loads; a link that a reader clicks loads nothing.
LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"((?:https?:)?//[^\"]*)\"|url\(['\"]?(\w+://[^)]*)\)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_no_page_is_wider_than_the_screen(browser: Chromium, width: int) -> None:
    assert len(PAGES) > 150
    faults = {}
    for page in PAGES:
        browser.show(SITE / page, width)
        faults[str(page)] = browser.evaluate(WIDE) + browser.complaints()
    assert {page: found for page, found in faults.items() if found} == {}


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_search_finds_the_page_of_a_symptom(browser: Chromium, width: int) -> None:
    browser.show(SITE / "index.html", width)
    browser.follow()
    assert browser.evaluate("location.href").endswith("/README.html")
    # On a narrow screen the field is behind a button.
    if width < WIDTHS["desktop"]:
        browser.evaluate("document.querySelector('.nav-overlay-icon').click()")
    until(lambda: browser.evaluate("document.querySelector('.sidebar-search').getBoundingClientRect().left") >= 0)
    browser.evaluate("document.querySelector('.sidebar-search').value = 'host key'")
    browser.follow("document.querySelector('.sidebar-search').form.submit()")
    until(lambda: "found" in browser.evaluate("document.querySelector('.search-summary')?.textContent ?? ''"))
    first = "document.querySelector('#search-results li a')"
    assert browser.evaluate(f"{first}.textContent") == "The host key is not trusted"
    assert browser.evaluate(WIDE) == []
    browser.follow(f"{first}.click()")
    assert browser.evaluate("document.title").startswith("The host key is not trusted")
    assert "/runbooks/contact-host-key.html" in browser.evaluate("location.href")


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_first_page_begins_with_the_commands_of_an_owner(browser: Chromium, width: int) -> None:
    browser.show(SITE / "README.html", width)
    first = "document.querySelector('article pre')"
    assert "vllm-spark init" in browser.evaluate(f"{first}.textContent")
    assert browser.evaluate(f"{first}.compareDocumentPosition(document.querySelector('article table'))") & FOLLOWS
    assert browser.evaluate(f"{first}.getBoundingClientRect().top") < SCREEN_HEIGHT


def test_the_speeds_of_the_recipes_are_on_a_phone(browser: Chromium) -> None:
    browser.show(SITE / "reference" / "recipes.html", PHONE)
    heads = browser.evaluate(
        "[...document.querySelectorAll('article table')[0].querySelectorAll('thead th')]"
        ".map((cell) => [cell.textContent, cell.getBoundingClientRect().right])"
    )
    right = {name: end for name, end in heads if name.endswith("tok/s")}
    assert [*right] == ["forecast tok/s", "reported tok/s"]
    assert max(right.values()) <= PHONE


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_as_light_or_dark_as_the_screen(browser: Chromium, dark: bool) -> None:
    browser.show(SITE / "README.html", WIDTHS["desktop"], dark=dark)
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 3 * 64) == dark


def test_the_navigation_has_four_parts(browser: Chromium) -> None:
    browser.show(SITE / "runbooks" / "contact-host-key.html", WIDTHS["desktop"])
    captions = browser.evaluate(
        "[...document.querySelectorAll('.sidebar-tree .caption-text')].map((c) => c.textContent)"
    )
    assert captions == ["Begin", "Do", "Look up", "Understand"]
    shown = browser.evaluate("document.querySelectorAll('.sidebar-tree .toctree-l1').length")
    assert shown > 40
    assert browser.evaluate("document.querySelector('.sidebar-tree li.current > a').textContent") == "Symptoms"


def test_the_pages_name_no_other_host() -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in SITE.rglob("*") if file.suffix in {".html", ".css"}}
    texts = {file: text for file, text in texts.items() if "_downloads" not in file.parts}
    assert len(texts) > 150
    assert {str(file): found for file, text in texts.items() if (found := LOADED.findall(text))} == {}
    assert LOADED.findall('<script async src="https://cdn.example/x.js">@import url(https://fonts.example/a)') != []


def test_every_link_leads_to_a_file_of_the_site() -> None:
    """Sphinx judges links between pages. This judges what it made of those that lead out of docs/."""
    links = {
        (file, target)
        for file in SITE.rglob("*.html")
        if "_downloads" not in file.parts
        for target in re.findall(r'href="([^"#]+)', file.read_text(encoding="utf-8"))
        if "://" not in target and not target.startswith("data:")
    }
    assert sum("_downloads" in target for _, target in links) > 20
    missing = [
        f"{file.name}: {target}" for file, target in sorted(links) if not (file.parent / target.split("?")[0]).exists()
    ]
    assert missing == []
