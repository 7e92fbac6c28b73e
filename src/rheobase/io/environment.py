"""Versions of the packages and the commit of the source."""

import os
import platform
import subprocess
from pathlib import Path

from rheobase import __version__


def package_versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    import numpy
    import torch

    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "rheobase": __version__,
    }
    return versions | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def find_commit(given: str | None = None) -> str:
    """The commit of this package's source: the given one, `RHEOBASE_COMMIT`, from git, or "unknown".

    From git, "-modified" is appended if the working tree has changes.
    """
    if commit := given or os.environ.get("RHEOBASE_COMMIT"):
        return commit
    here = Path(__file__).parents[1] / "__init__.py"
    # An installed copy may be inside another repository, which does not track it.
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return "unknown"
    commit = _git(here.parent, "rev-parse", "HEAD")
    changes = _git(here.parent, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit}-modified" if changes else commit or "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
