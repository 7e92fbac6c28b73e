"""The README: made from records, and its example runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from rheobase.analysis.comparison import Comparison
from rheobase.papers.records import load_all
from rheobase.papers.report.readme import draw_demonstration, refresh_readme
from rheobase.papers.report.speed import read_benchmarks
from rheobase.reports.demonstration import Demonstration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_is_what_the_records_say() -> None:
    demonstration = Demonstration.read(ROOT / "docs" / "demo.json")
    comparison = Comparison.read(ROOT / "docs" / "compare.json")
    benchmarks = read_benchmarks(ROOT / "benchmarks" / "records")
    fresh = refresh_readme(README, load_all(ROOT / "results"), demonstration, comparison, benchmarks)
    assert fresh == README, "the README is stale: rheobase report --readme README.md makes it anew"
    assert (ROOT / "docs" / "demo.svg").read_text("utf-8") == draw_demonstration(demonstration)


def test_the_demonstration_shows_what_the_theory_says() -> None:
    results = Demonstration.read(ROOT / "docs" / "demo.json").results
    assert all(results["half"].accuracy[t] > results["zero"].accuracy[t] for t in range(8))


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code[1], "README.md", "exec"), names)
    assert names["run"].logits.shape == (8, 4, 10)
    assert (tmp_path / "network.safetensors").exists()
