"""Contract of every paper in the folder, and checks of what was copied out of it."""

import pytest

from rheobase import methods, papers
from rheobase.training import models
from rheobase.training.recipe import RECIPES

PAPERS = [papers.get(name) for name in papers.names()]
CELLS = [
    pytest.param(paper, cell, id=f"{paper.name}-{cell.name}") for paper in PAPERS for cell in paper.cells
]


def test_there_are_papers_with_cells():
    assert PAPERS
    assert CELLS
    assert all(paper.cells for paper in PAPERS)


@pytest.mark.parametrize(("paper", "cell"), CELLS)
def test_a_cell_is_found_by_its_name_and_can_be_run(paper, cell):
    assert paper.cell(cell.name) is cell
    assert cell.model in models.names()
    assert cell.recipe in RECIPES
    assert paper.method in methods.names()
    assert str(methods.get(paper.method).initial) == paper.initial


@pytest.mark.parametrize(("paper", "cell"), CELLS)
def test_every_number_is_a_percentage_in_a_known_column(paper, cell):
    for row in cell.rows:
        assert tuple(row.accuracy) == paper.steps
        for value in (row.ann, *row.accuracy.values()):
            assert value is None or 0 <= value <= 100
        assert any(value is not None for value in row.accuracy.values())


@pytest.mark.parametrize(("paper", "cell"), CELLS)
def test_the_last_row_is_the_papers_own_and_has_no_gaps(paper, cell):
    assert cell.own.method == paper.method
    assert None not in cell.own.accuracy.values()
    assert [row.method for row in cell.rows].count(paper.method) == 1


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_columns_claims_and_energy_belong_to_the_papers_tables(paper):
    assert len(paper.columns) == len(paper.steps)
    for claim in paper.claims:
        paper.cell(claim.cell)
        assert 0 <= claim.zero < claim.half <= 100
    for energy in paper.energy:
        paper.cell(energy.cell)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_what_other_authors_report_is_about_known_methods_and_networks(paper):
    for original in paper.originals:
        paper.cell(original.cell)
        assert original.method in methods.names()
        assert original.source
        assert original.ann is None or 0 <= original.ann <= 100
        assert original.accuracy
        assert all(t > 0 and 0 <= a <= 100 for t, a in original.accuracy.items())


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'opi2022'"):
        papers.get("opi2202")
    with pytest.raises(ValueError, match="did you mean 'vgg16-cifar100'"):
        papers.get("opi2022").cell("vgg16-cifar-100")


@pytest.mark.parametrize(
    ("cell", "table", "rows", "total"),
    [
        ("vgg16-cifar10", "table 1", 9, 4429.93),
        ("resnet20-cifar10", "table 1", 5, 1954.50),
        ("resnet18-cifar10", "table 1", 3, 1869.07),
        ("vgg16-cifar100", "table 2", 6, 2060.79),
        ("resnet20-cifar100", "table 2", 4, 1221.87),
        ("resnet18-cifar100", "table 2", 3, 1496.64),
        ("vgg16-imagenet", "table 3", 5, 1473.364),
    ],
)
def test_the_printed_numbers_add_up_to_what_the_papers_source_gives(cell, table, rows, total):
    found = papers.get("opi2022").cell(cell)
    values = [v for row in found.rows for v in (row.ann, *row.accuracy.values()) if v is not None]
    assert (found.table, len(found.rows), round(sum(values), 3)) == (table, rows, total)


def test_the_energy_table_follows_from_its_own_constants():
    for energy in papers.get("opi2022").energy:
        assert energy.mflop * 12.5e-3 == pytest.approx(energy.ann_millijoules, abs=6e-4)
        assert energy.msop * 77e-6 == pytest.approx(energy.snn_millijoules, abs=6e-5)
        assert round(energy.ann_millijoules / energy.snn_millijoules) == energy.ratio
