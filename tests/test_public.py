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
    """Verbs bring in none of the readers, drawers and exporters, and no compiler, which takes seconds."""
    code = (
        "import sys, torch, rheobase\n"
        "from torch.nn import Conv2d, Flatten, Linear, ReLU, Sequential\n"
        "class Functional(Conv2d):\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.conv2d(x, self.weight, self.bias)\n"
        "layers = Conv2d(1, 4, 3), ReLU(), Functional(4, 4, 3), ReLU(), Flatten(), Linear(64, 2)\n"
        "model, x, y = Sequential(*layers).eval(), torch.rand(8, 1, 8, 8), torch.arange(8) % 2\n"
        "for method, *then in (['max-norm'], ['sigma-delta'], ['max-norm', 'signed'], ['hmt', 'ftbc']):\n"
        "    snn = rheobase.convert(model, method, x, then=then)\n"
        "    rheobase.simulate(snn, x, 4)\n"
        "    rheobase.evaluate(snn, (x, y), 4, progress=False)\n"
        "heavy = {'matplotlib', 'jinja2', 'typer', 'rich', 'safetensors', 'nir', 'h5py', 'PIL', 'triton'}\n"
        "heavy |= {'sympy', 'torch._dynamo', 'torch._inductor'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
