"""The public names: there, and homes that do not shadow them."""

import importlib
import subprocess
import sys

import rheobase


def test_every_public_name_is_there_whatever_was_imported_before() -> None:
    for home, names in rheobase._HOMES.items():
        module = importlib.import_module(f"rheobase.{home}")
        for name in names:
            assert getattr(rheobase, name) is getattr(module, name)
    assert sorted(n for names in rheobase._HOMES.values() for n in names) == sorted(rheobase.__all__)


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
