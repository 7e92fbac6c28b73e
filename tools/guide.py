"""A hook of mkdocs: CHANGELOG.md becomes a page of the guide."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add the page, with links as they are in the guide."""
    from mkdocs.structure.files import File

    text = (ROOT / "CHANGELOG.md").read_text("utf-8").replace("(docs/", "(")
    files.append(File.generated(config, "changelog.md", content=text))
    return files
