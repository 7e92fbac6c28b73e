"""Every kind of page in a real browser: no error, no request, nothing cut off, in both schemes and widths."""

import base64
import os
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest

from chromium import Browser, find_browser
from page_records import HOSTILE, make_comparison, make_run
from rheobase.papers.records import load_all
from rheobase.papers.report import write_report
from rheobase.reports.comparison_page import comparison_page, joined_page, page_of
from rheobase.reports.diagnosis_page import diagnosis_page
from rheobase.reports.run_page import evaluation_page

ROOT = Path(__file__).parents[2]
LONG = "features.of.a.network.with.very.long.names"

KINDS = {
    "evaluation": lambda folder: evaluation_page(
        make_run(20, 32, diagnosed=False, name=LONG, exit="Margin(level=0.5, after=1)"), folder / "a.html"
    ),
    "precise": lambda folder: evaluation_page(make_precise(), folder / "a.html"),
    "diagnosis": lambda folder: diagnosis_page(make_run(20, 32, channels=32), folder / "a.html"),
    "largest": lambda folder: diagnosis_page(make_run(110, 512, name=LONG, channels=512), folder / "a.html"),
    "hostile": lambda folder: diagnosis_page(make_run(name=HOSTILE, exit=HOSTILE), folder / "a.html"),
    "joined": lambda folder: joined_page(
        [make_run(name=LONG), make_run(diagnosed=False), make_comparison()], folder / "a.html"
    ),
    "comparison": lambda folder: comparison_page(make_comparison(), folder / "a.html"),
    "demonstration": lambda folder: page_of(
        sorted((ROOT / "tools/records").glob("demo-*.json")), folder / "a.html"
    ),
    "reproduction": lambda folder: write_report(load_all(ROOT / "results"), folder)[0],
}

OVERFLOWING = """
[...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.scroll table') || element.closest('details:not([open])')) return false;
  const svg = element.ownerSVGElement;
  if (svg && element.tagName !== 'text') return false;
  const box = element.getBoundingClientRect();
  const within = svg ? svg.getBoundingClientRect() : document.documentElement.getBoundingClientRect();
  return box.width > 0 && (box.left < within.left - 1 || box.right > within.right + 1);
}).map(element => element.tagName + ': ' + element.textContent.slice(0, 60))
"""
ERRORS = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed"}


def make_precise():
    """A run whose accuracies need the longest ticks, 99.96 to 100.00."""
    run = make_run(diagnosed=False, exit="a rule")
    accuracy = [99.95 + 0.05 * t / 15 for t in range(16)]
    return replace(run, ann_accuracy=100.0, evaluation=replace(run.evaluation, accuracy=accuracy))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = find_browser()
    if path is None:
        pytest.skip("no browser: install chromium or google-chrome, or set RHEOBASE_BROWSER to one")
    with Browser(path, tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_at_every_width_and_in_both_schemes(kind, browser, tmp_path):
    page = KINDS[kind](tmp_path)
    grounds = {}
    for width in (380, 1400):
        for scheme in ("light", "dark"):
            began = perf_counter()
            events = browser.open(page, width=width, scheme=scheme)
            print(f"{kind}, {width} px, {scheme}: opened in {perf_counter() - began:.2f} s")
            assert [e["params"] for e in events if e.get("method") in ERRORS] == []
            asked = {
                e["params"]["request"]["url"]
                for e in events
                if e.get("method") == "Network.requestWillBeSent"
            }
            assert {url for url in asked if not url.startswith("data:image/png;")} == {page.as_uri()}
            assert browser.evaluate("innerWidth") == width
            assert browser.evaluate(
                "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            )
            assert browser.evaluate(OVERFLOWING) == []
            grounds[scheme] = browser.evaluate("getComputedStyle(document.body).backgroundColor")
            keep(browser, f"{kind}-{width}-{scheme}.png")
    assert grounds == {"light": "rgb(253, 253, 252)", "dark": "rgb(23, 23, 23)"}
    browser.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    images = browser.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert all(images)


def keep(browser, name):
    """Keep a picture of the page where somebody wants to look at it."""
    if folder := os.environ.get("RHEOBASE_SCREENSHOTS"):
        (Path(folder) / name).write_bytes(base64.b64decode(browser.photograph()))
