"""Write the generated blocks of README.md and docs/*.md again, from the records: `python -m tools.pages`.

A generated block is between `<!-- NAME -->` and `<!-- /NAME -->`. The rest is written by hand.
"""

from collections.abc import Callable
from pathlib import Path

from rheobase.io import replace_file
from tools import (
    commands,
    few_steps_pages,
    hugging_face,
    onnx_files,
    performance,
    pretrained_packages,
    readme,
    reproduce,
    sigma_delta,
    timm,
    torchvision,
    transformers,
)
from tools.markdown import fill

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCKS: dict[str, Callable[[], str]] = (
    commands.BLOCKS
    | few_steps_pages.BLOCKS
    | hugging_face.BLOCKS
    | onnx_files.BLOCKS
    | readme.BLOCKS
    | performance.BLOCKS
    | pretrained_packages.BLOCKS
    | reproduce.BLOCKS
    | sigma_delta.BLOCKS
    | timm.BLOCKS
    | torchvision.BLOCKS
    | transformers.BLOCKS
)


def pictures() -> dict[Path, str]:
    """The figures of the README and the guide."""
    drawn = {"demo.svg": readme.draw_demo()} | few_steps_pages.pictures()
    return {ROOT / "docs" / name: text for name, text in drawn.items()}


def main() -> None:
    """Write every page whose blocks have changed, and the figures."""
    fresh = {path: fill(path.read_text("utf-8"), BLOCKS) for path in PAGES} | pictures()
    for path, text in fresh.items():
        if not path.exists() or path.read_text("utf-8") != text:
            replace_file(path, text)
            print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
