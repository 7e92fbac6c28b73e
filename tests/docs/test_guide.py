"""The guide and the README: every code block runs, and a page shows what its blocks print.

The python blocks of a page share a namespace and run in order, in an empty folder. Shell blocks run through
the command line. A block that begins with `# needs …`, for data or a machine that tests do not have, is only
parsed: the command must exist and accept every option given.

A text block shows the output of the block before it. Words must match; numbers may differ as much as another
processor makes the same training differ. `…` stands for omitted lines. Where a search decides, words may
differ too: such a block is titled "for example", and only the first word of each line must match.
`python tests/docs/test_guide.py PAGE` writes the outputs of a page again, except blocks that omit lines.
"""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from rheobase import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
README = "../README.md"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?%)?")

GIVEN = {
    "nir.md": """
import torch, rheobase
from torch import nn
torch.manual_seed(0)
layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)
inputs, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
test_data = inputs, labels
snn = rheobase.convert(nn.Sequential(*layers).eval(), "max-norm", inputs, initial=rheobase.HALF)
""",
    "onnx.md": """
import warnings, torch
from torch import nn
calibration = torch.rand(16, 1, 8, 8)
layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
model = nn.Sequential(*layers).eval()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.onnx.export(model, (calibration[:1],), "net.onnx", dynamo=False)
""",
}
"""What a page uses without creating it: a network, its inputs, a file."""


@dataclass(frozen=True)
class Block:
    """A block of a page and the line it begins on."""

    info: str
    text: str
    line: int

    @property
    def kind(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def example(self) -> bool:
        return 'title="for example"' in self.info

    @property
    def parsed_only(self) -> bool:
        return self.text.startswith("# needs ")


def blocks_of(page: str) -> list[Block]:
    text = (DOCS / page).read_text("utf-8")
    return [
        Block(found[1].strip(), found[2], text[: found.start()].count("\n") + 2)
        for found in FENCE.finditer(text)
    ]


def run_page(page: str) -> Iterator[tuple[Block, str]]:
    """Every block of a page that can run, and what it prints."""
    names: dict[str, Any] = {"__name__": "guide"}
    if page in GIVEN:
        exec(GIVEN[page], names)
    for block in blocks_of(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if block.kind == "python":
                code = "\n" * (block.line - 1) + block.text  # a traceback then names the line of the page
                program = compile(code, str(DOCS / page), "exec")
                if not block.parsed_only:
                    exec(program, names)
            elif block.kind == "shell":
                for command in commands_of(block):
                    run_command(command, block.parsed_only)
        if block.kind in ("python", "shell"):
            yield block, printed.getvalue()


def commands_of(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_command(command: list[str], parsed_only: bool) -> None:
    program, *rest = command
    if program == "make":
        assert all(f"\n{target}:" in (ROOT / "Makefile").read_text() for target in rest), command
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = re.findall(r"\[(.*)\]", rest[-1])
        assert all(extra in extras for names in asked for extra in names.split(",")), command
    elif parsed_only:
        known = typer.main.get_command(cli.app).commands
        words = ["cpu" if word == "cuda" else word for word in rest[1:]]  # tests may have no GPU
        known[rest[0]].make_context(rest[0], words)
    else:
        assert program == "rheobase", f"cannot run {command}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", command)
            status = _status_of_main()
        assert not status, f"{command} ended with {status}"


def _status_of_main() -> Any:
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    return 0


def begins_alike(shown: str, printed: str) -> bool:
    """Whether the same number of lines was printed, each with the first word that is shown."""
    texts = (NUMBER.sub("#", text) for text in (shown, printed))
    firsts = [[line.split()[0] for line in text.splitlines() if line.strip()] for text in texts]
    return firsts[0] == firsts[1]


def matches(shown: str, printed: str) -> bool:
    """Whether a text is what was printed, up to close numbers and omitted lines."""
    pieces = [piece.split("\n") for piece in re.split(r"^…$", shown.strip(), flags=re.MULTILINE)]
    lines, at = printed.strip().split("\n"), 0
    for number, piece in enumerate(pieces):
        wanted = [line for line in piece if line.strip()]
        starts = range(at, len(lines) + 1) if number else range(at, at + 1)
        found = next((s for s in starts if _alike(wanted, lines[s:])), None)
        if found is None:
            return False
        kept = [i for i in range(found, len(lines)) if lines[i].strip()][: len(wanted)]
        at = kept[-1] + 1 if kept else found
    return shown.rstrip().endswith("…") or not any(line.strip() for line in lines[at:])


def _alike(wanted: list[str], lines: list[str]) -> bool:
    found = [line for line in lines if line.strip()][: len(wanted)]
    return len(found) == len(wanted) and all(map(_close, wanted, found))


def _close(shown: str, printed: str) -> bool:
    words = [" ".join(NUMBER.sub("#", line).split()) for line in (shown, printed)]
    numbers = [NUMBER.findall(line) for line in (shown, printed)]
    return words[0] == words[1] and all(map(_near, *numbers))


def _near(shown: str, printed: str) -> bool:
    if shown.endswith("%") != printed.endswith("%"):
        return False
    a, b = (float(number.rstrip(" %").replace(",", "").replace("−", "-")) for number in (shown, printed))
    least = 3.0 if shown.endswith("%") else 1.0 if shown.isdecimal() else 0.0
    return abs(a - b) <= max(least, 0.25 * max(abs(a), abs(b)))


def outputs_of(page: str) -> dict[int, str]:
    """What each text block should show, by the line it begins on; runs the page."""
    run = {block.line: printed for block, printed in run_page(page)}
    shown: dict[int, str] = {}
    before: Block | None = None
    for block in blocks_of(page):
        if block.kind == "text":
            assert before is not None, f"{page}:{block.line} shows the output of no block"
            shown[block.line] = run[before.line]
        before = block if block.kind in ("python", "shell") else None
    return shown


def stage(folder: Path) -> None:
    """Prepare a folder to run a page in, with the measured records as in a checkout."""
    shutil.copytree(ROOT / "results", folder / "results")
    os.chdir(folder)


def test_there_are_pages_and_the_site_names_them_all() -> None:
    assert len(PAGES) > 8
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [page for page in PAGES if f": {page}\n" not in site] == []


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_of_a_kind_that_nobody_checks(page: str) -> None:
    for block in blocks_of(page):
        if block.kind == "json":
            json.loads(block.text)
        known = {"python", "shell", "text", "json"} | ({""} if page == "design.md" else set())
        assert block.kind in known, f"{page}:{block.line}"
    fences = (DOCS / page).read_text("utf-8").count("```")
    assert fences == 2 * len(blocks_of(page)), f"{page} has a fence that is indented or not closed"


@pytest.mark.parametrize(
    "page", [p for p in (README, *PAGES) if any(b.kind in ("python", "shell") for b in blocks_of(p))]
)
def test_the_blocks_run_and_print_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    if page == "nir.md":
        monkeypatch.setattr("rheobase.exchange.check_simulator", _stand_in)
    stage(tmp_path)
    blocks = {block.line: block for block in blocks_of(page)}
    for line, printed in outputs_of(page).items():
        alike = begins_alike if blocks[line].example else matches
        assert alike(blocks[line].text, printed), (
            f"{page}:{line} shows\n{blocks[line].text}\nbut the run gives\n{printed}\n"
            "`python tests/docs/test_guide.py` writes it again"
        )


def _stand_in(path: str, simulator: str) -> str:
    """Replaces other simulators, which tests/interop runs in their own environment."""
    from rheobase.exchange import simulators

    assert simulator in simulators.names()
    assert Path(path).exists()
    return f"not run here: {simulator}"


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((DOCS / README).read_text("utf-8").splitlines()) <= 120


def test_a_wrong_word_a_wrong_number_and_a_missing_line_are_noticed() -> None:
    printed = "site 2 is off by 30 %\nsite 5 is off by 52 %\nend\n"
    assert matches(printed, printed)
    assert matches("site 2 is off by 31 %\n…\nend\n", printed)
    assert matches("site 2 is off by 30 %\n…\n", printed)
    assert not matches("site 2 is out by 30 %\n…\n", printed)
    assert not matches("site 2 is off by 60 %\n…\n", printed)
    assert not matches("site 2 is off by 30 %\nend\n", printed)
    assert not matches("site 2 is off by 30 %\n", printed)
    assert not matches("site 5 is off by 30 %\n…\n", printed)
    assert begins_alike("site 3 clips\nsite 4\nend of it\n", printed)
    assert not begins_alike("site 3 clips\nend of it\n", printed)


def write_outputs(page: str) -> None:
    """Write what the blocks print into the text blocks of a page that omit no lines."""
    printed = outputs_of(page)
    path = DOCS / page
    lines = path.read_text("utf-8").split("\n")
    for line in sorted(printed, reverse=True):
        end = lines.index("```", line - 1)
        if "…" not in lines[line - 1 : end]:
            lines[line - 1 : end] = [row.rstrip() for row in printed[line].strip("\n").split("\n")]
    path.write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    import tempfile
    from time import perf_counter

    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "90"
    for name in sys.argv[1:] or [page for page in PAGES if page not in GIVEN]:
        with tempfile.TemporaryDirectory() as temporary:
            stage(Path(temporary))
            began = perf_counter()
            write_outputs(name)
            os.chdir(ROOT)
            print(f"{name}: {perf_counter() - began:.1f} s", file=sys.stderr)
