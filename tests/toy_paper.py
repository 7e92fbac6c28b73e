"""A paper of one small cell on the embedded digits, which is reproduced in seconds."""

from rheobase.papers import study as studies
from rheobase.papers.cells import Training, train_cell
from rheobase.papers.paper import Cell, Paper, Row

STEPS = (2, 4, 8)
CELL = Cell(
    name="small-digits",
    title="Small network on digits",
    table="table 1",
    model="small",
    dataset="digits",
    recipe="digits",
    rows=(Row("Ours", "opi", 99.0, dict.fromkeys(STEPS, 98.0)),),
)
PAPER = Paper(
    name="toy",
    title="A toy",
    citation="Nobody, 2020",
    method="opi",
    initial="half",
    steps=STEPS,
    columns=("T=2", "T=4", "T=8"),
    cells=(CELL,),
)
QUICK = {"limit": 256, "commit": "abc", "progress": False, "device": "cpu"}


def make_study(runs, folder, **changes):
    """The toy network, trained for a few epochs or taken from its checkpoint."""
    study = train_cell(PAPER, CELL, Training(folder=folder, runs=runs, **(QUICK | {"epochs": 4} | changes)))
    study.longest = 8
    return study


def count_calls(monkeypatch):
    """The calls of `evaluate` from now on."""
    calls = []
    evaluate = studies.evaluate

    def counted(*args, **kwargs):
        calls.append(args)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(studies, "evaluate", counted)
    return calls
