"""Whether programs for AVX-512 can run."""

from functools import cache
from importlib.util import find_spec

import torch

NEEDED = ("avx512f", "avx512bw", "avx512vl", "avx512vbmi2")


@cache
def explain_no_avx512() -> str | None:
    """Say why programs for AVX-512 cannot run in this process, or return None when they can."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return "PyTorch does not use AVX-512 here"
    if find_spec("llvmlite") is None:
        return "the package llvmlite is not installed"
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    missing = [name for name in NEEDED if not features.get(name)]
    return f"the CPU lacks {', '.join(missing)}" if missing else None
