"""The public names: there, and homes that do not shadow them."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import rheobase


def test_every_public_name_is_there_whatever_was_imported_before() -> None:
    for name in rheobase.__all__:
        module = importlib.import_module(f"rheobase.{rheobase._ROOMS[name]}")
        assert getattr(rheobase, name) is getattr(module, name)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(rheobase.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert sorted(alias.name for each in block.body for alias in each.names) == rheobase.__all__


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, rheobase; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_network_needs_is_torch_and_numpy() -> None:
    """Converting and simulating brings in none of the readers, drawers and exporters."""
    code = (
        "import sys, torch, rheobase\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()\n"
        "x = torch.rand(8, 4)\n"
        "rheobase.simulate(rheobase.convert(model, 'max-norm', x), x, 4)\n"
        "heavy = {'matplotlib', 'jinja2', 'typer', 'rich', 'safetensors', 'nir', 'h5py', 'PIL', 'triton'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
