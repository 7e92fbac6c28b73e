"""Use the installed package from an empty folder, without its source: `make test-package` runs this."""

import subprocess
import sys
from pathlib import Path

import rheobase
from rheobase.reports import evaluation_page, record_evaluation
from rheobase.training import datasets, models

STEPS = 4


def main() -> None:
    """Call the command, convert a network, and load everything the package ships that is not code."""
    assert Path(rheobase.__file__).is_relative_to(sys.prefix), f"{rheobase.__file__} is not the installed one"
    command = Path(sys.executable).with_name("rheobase")
    help_text = subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    assert "convert" in help_text, help_text
    digits = datasets.load("digits")
    snn = rheobase.convert(models.build("small").eval(), calibration=digits.train.take(64))
    rheobase.save(snn, "snn.safetensors")
    result = rheobase.evaluate(rheobase.load("snn.safetensors"), digits.test.take(64), STEPS, progress=False)
    record = record_evaluation(snn, result, title="Trial")
    assert "<h2>Accuracy</h2>" in evaluation_page(record, "trial.html").read_text("utf-8")
    for name in models.catalogue():
        models.pretrained(name)
    print(f"rheobase {rheobase.__version__} works from its wheel")


if __name__ == "__main__":
    main()
