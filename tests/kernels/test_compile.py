"""Every Triton kernel compiles for a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import rheobase.kernels


def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    script = Path(__file__).parent / "compile_for_gpu.py"
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script], env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sources = Path(rheobase.kernels.__path__[0]).glob("*/triton.py")
    launched = {
        name.rpartition(".")[2]
        for source in sources
        for name in re.findall(r"\blaunch\(\s*([\w.]+)", source.read_text("utf-8"))
    }
    assert len(launched) > 10
    assert set(done.stdout.split()) == launched
