"""The notebooks run from the first cell to the last, and git has them without outputs."""

from pathlib import Path

import nbclient
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_are_notebooks_and_the_list_names_them_all() -> None:
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    assert len(NOTEBOOKS) == 5
    for path in (*NOTEBOOKS, *EXAMPLES.glob("*.py")):
        assert f"]({path.name})" in listed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_tables_and_figures(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), (
        f"clear the outputs of {path.name}"
    )
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", ())}
    assert {"text/html", "image/png"} <= kinds
    results = [output for cell in cells for output in cell.outputs if output.output_type == "execute_result"]
    assert any("<img src=" in output["data"].get("text/html", "") for output in results)
