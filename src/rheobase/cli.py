"""The command line: each command is one verb of the package.

torch is imported inside the commands, so that help is there at once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from torch import nn

    from rheobase.datasets import Dataset

app = typer.Typer(
    help="Turn a trained ReLU network into a spiking one that answers in a few time steps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str,
    typer.Argument(
        help="A built-in name (vgg16, resnet20, small …), `package.module:callable`, or an .onnx file."
    ),
]
Data = Annotated[str, typer.Option(help="`digits`, `cifar10`, `cifar100`, or a folder of images.")]
Root = Annotated[Path | None, typer.Option(help="Where CIFAR lies; by default $RHEOBASE_DATA.")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file, as `rheobase train` writes it.")]
MethodName = Annotated[str, typer.Option(help="A conversion method; `rheobase methods` lists them.")]
Start = Annotated[
    str | None, typer.Option(help="zero, half, uniform, gaussian, or a fraction of the threshold.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]


def main() -> None:
    """Run the command line; what a user can mend is said in words, without a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        from rich.console import Console

        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {_escaped(str(error))}")
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("demo"),
    dataset: Annotated[str, typer.Option(help="`digits`, or `cifar10` where the data is.")] = "digits",
    root: Root = None,
) -> None:
    """Train a network, convert it, and watch it answer in spikes: under a minute.

    Example: `rheobase demo`
    """
    from rheobase.demo import run

    run(out, dataset, root)


@app.command()
def inspect(
    model: Model,
    shape: Annotated[str, typer.Option(help="One input's shape, such as 3,32,32.")] = "3,32,32",
    classes: Annotated[int, typer.Option(help="Classes of a built-in network.")] = 10,
) -> None:
    """Show what each call of a model becomes, and what refuses.

    Example: `rheobase inspect resnet20`, `rheobase inspect mymodels:build --shape 1,28,28`
    """
    import torch

    import rheobase

    coverage = rheobase.inspect(_build(model, classes), torch.randn(2, *_shape(shape)))
    if not coverage.convertible:
        raise typer.Exit(1)


@app.command()
def methods() -> None:
    """List the conversion methods.

    Example: `rheobase methods`
    """
    from rich.console import Console
    from rich.table import Table

    from rheobase import methods as registry

    table = Table("name", "needs", "what it is", box=None, header_style="bold", pad_edge=False)
    for name in registry.names():
        method = registry.find(name).example()
        needs = {"its own training": method.needs_training, "calibration data": method.needs_calibration}
        table.add_row(
            name, ", ".join(n for n, so in needs.items() if so), (type(method).__doc__ or "").split("\n")[0]
        )
    Console().print(table)


@app.command()
def train(
    model: Model,
    data: Data = "digits",
    method: MethodName = "opi",
    recipe: Annotated[
        str | None, typer.Option(help="A recipe's name; by default the one for MODEL and DATA.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the weights.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    root: Root = None,
    device: Device = "cpu",
) -> None:
    """Train a network with the method's activations; an interrupted training resumes.

    Example: `rheobase train small --data digits --out runs/digits.safetensors`
    """
    from dataclasses import replace

    import torch

    import rheobase
    from rheobase import datasets
    from rheobase.checkpoints import save_weights
    from rheobase.recipes import RECIPES, find_recipe
    from rheobase.training import accuracy
    from rheobase.training import train as fit

    dataset = datasets.load(data, root)
    default = f"{model}-{data}" if f"{model}-{data}" in RECIPES else data
    chosen = find_recipe(recipe or default)
    chosen = replace(chosen, epochs=epochs or chosen.epochs, seed=chosen.seed if seed is None else seed)
    if device == "cpu":
        chosen = replace(chosen, precision="float32", compile=False)
    torch.manual_seed(chosen.seed)
    prepared = rheobase.prepare(_build(model, len(dataset.classes)), method).to(device)
    out = out or Path("runs") / f"{model.replace(':', '-')}-{dataset.name}.safetensors"
    trained = fit(prepared, dataset.train, chosen, checkpoint=out.with_suffix(".checkpoint"))
    share = accuracy(trained.model, dataset.test.to(device))
    save_weights(
        trained.model,
        out,
        {"model": model, "classes": len(dataset.classes), "dataset": dataset.name, "method": method},
    )
    typer.echo(f"test accuracy {100 * share:.2f} %; weights in {out}")


@app.command()
def convert(
    model: Model,
    weights: Weights = None,
    data: Data = "digits",
    method: MethodName = "opi",
    initial: Start = None,
    out: Annotated[Path, typer.Option(help="Where to write the spiking network.")] = Path("snn.safetensors"),
    samples: Annotated[int, typer.Option(help="Training images to calibrate on.")] = 512,
    setting: Annotated[
        list[str] | None, typer.Option(help="A setting of the method, as name=value; repeatable.")
    ] = None,
    root: Root = None,
) -> None:
    """Convert a trained network and write the spiking one to a file.

    Example: `rheobase convert small --weights runs/digits.safetensors --data digits --initial half`
    """
    import rheobase
    from rheobase import datasets, membrane

    dataset = datasets.load(data, root)
    network = _load(model, weights, dataset)
    calibration = dataset.train.take(min(samples, len(dataset.train)))
    start = None if initial is None else membrane.parse(initial)
    snn = rheobase.convert(network, method, calibration, initial=start, **_settings(setting or []))
    snn.save(out)
    typer.echo(f"{len(snn.sites)} sites, method {method}, start {snn.provenance.initial}: written to {out}")


@app.command()
def evaluate(
    network: Annotated[Path, typer.Argument(help="A spiking network, as `rheobase convert` writes it.")],
    data: Data = "digits",
    steps: Annotated[int, typer.Option(help="Time steps.")] = 32,
    batch_size: Annotated[int, typer.Option(help="Images at a time; changes no result.")] = 100,
    limit: Annotated[int | None, typer.Option(help="Only so many test images.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the results here as JSON.")] = None,
    root: Root = None,
    device: Device = "cpu",
) -> None:
    """Run a spiking network over the test images: accuracy, spikes and energy at every step.

    Example: `rheobase evaluate snn.safetensors --data digits --steps 32`
    """
    import rheobase
    from rheobase import datasets
    from rheobase.terminal import show

    snn = rheobase.load(network).to(device)
    split = datasets.load(data, root).test
    split = split if limit is None else split.take(limit)
    result = rheobase.evaluate(snn, split.to(device), steps, batch_size=batch_size)
    show({str(snn.provenance.initial): result})
    if json is not None:
        import dataclasses
        import json as writer

        json.write_text(writer.dumps(dataclasses.asdict(result), indent=1, sort_keys=True) + "\n")
        typer.echo(f"written to {json}")


@app.command()
def compare(
    model: Model = "small",
    weights: Weights = None,
    data: Data = "digits",
    methods: Annotated[str, typer.Option(help="Names with commas between, or `all`.")] = "all",
    initial: Annotated[str, typer.Option(help="Starts with commas between.")] = "zero,half",
    steps: Annotated[str, typer.Option(help="Columns with commas between.")] = "8,16,32,64,128",
    coding: Annotated[str, typer.Option(help="`constant` for all, or each method's `own`.")] = "constant",
    trained: Annotated[
        list[str] | None, typer.Option(help="Weights trained for a method, as opi=FILE; repeatable.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Training images to calibrate on.")] = 256,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("compare.html"),
    root: Root = None,
) -> None:
    """Convert one trained network by every method and start, and put them side by side.

    Without `--weights` a built-in network is trained first, in seconds on the digits.

    Example: `rheobase compare small --data digits --methods opi,max-norm --initial zero,half`
    """
    from rheobase import datasets, membrane
    from rheobase import methods as registry
    from rheobase.contest import compare as contest
    from rheobase.reports import comparison_page
    from rheobase.terminal import show_comparison

    if coding not in ("constant", "own"):
        raise ValueError(f"coding must be constant or own, got {coding!r}")
    dataset = datasets.load(data, root)
    columns = [_whole(t) for t in steps.split(",")]
    starts = [membrane.parse(name) for name in initial.split(",")]
    names = None if methods == "all" else methods.split(",")
    for name in names or []:
        registry.find(name)
    own = {name: _load(model, Path(file), dataset) for name, file in map(_pair, trained or [])}
    network = _train_plain(model, dataset) if weights is None else _load(model, weights, dataset)
    result = contest(
        network,
        dataset.train.take(min(samples, len(dataset.train))),
        dataset.test,
        names=names,
        initials=starts,
        steps=columns,
        coding="own" if coding == "own" else "constant",
        trained=own,
        title=f"{model} on {dataset.name}",
    )
    show_comparison(result)
    result.write(out.with_suffix(".json"))
    typer.echo(f"A page with the figures: {comparison_page(result, out)}")


@app.command()
def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, such as `opi2022`.")],
    cell: Annotated[str, typer.Argument(help="One of its networks, such as `resnet20-cifar10`.")],
    parts: Annotated[str, typer.Option(help="What to measure, with commas between.")] = "table",
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the paper's, for a trial.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images, for a trial.")] = None,
    steps: Annotated[int | None, typer.Option(help="At most so many time steps.")] = None,
    results: Annotated[Path, typer.Option(help="Where records go.")] = Path("results"),
    root: Root = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
) -> None:
    """Train a paper's network, convert it, measure it and write records; resumes where it stopped.

    Example: `rheobase reproduce opi2022 resnet20-cifar10 --parts table,starts --root data`
    """
    from rheobase.reproduction import reproduce as run

    written = run(
        paper,
        cell,
        root,
        parts=parts.split(","),
        folder=results,
        seed=seed,
        epochs=epochs,
        limit=limit,
        steps=steps,
        device=device,
    )
    typer.echo(f"{len(written)} records under {results}; `rheobase report` draws them")


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="A folder of records.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report"),
    readme: Annotated[Path | None, typer.Option(help="A README to make anew between its markers.")] = None,
) -> None:
    """Draw tables and figures from records, the paper's numbers beside ours.

    Example: `rheobase report results --out report`
    """
    from rheobase import records, reports

    page, text = reports.report(records.load_all(results), out)
    typer.echo(f"written: {page} and {text}")
    if readme is not None:
        reports.renew(readme, results)
        typer.echo(f"renewed: {readme}")


def _build(model: str, classes: int) -> "nn.Module":
    from rheobase import models

    if model.endswith(".onnx"):
        from rheobase.onnx import load_onnx

        return load_onnx(model)
    return models.build(model, classes)


def _train_plain(model: str, dataset: "Dataset") -> "nn.Module":
    """A network trained as it is, by the recipe of its dataset, where nobody gave weights."""
    import torch

    from rheobase.recipes import find_recipe
    from rheobase.training import train as fit

    recipe = find_recipe(dataset.name)
    torch.manual_seed(recipe.seed)
    return fit(_build(model, len(dataset.classes)), dataset.train, recipe).model


def _load(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network: built, given the activations it was trained with, and its weights."""
    import rheobase
    from rheobase import checkpoints

    network = _build(model, len(dataset.classes))
    if weights is None:
        if ":" not in model and not model.endswith(".onnx"):
            raise ValueError(
                f"{model} has fresh weights: pass --weights, as `rheobase train {model}` writes them"
            )
        return network.eval()
    _, metadata = checkpoints.read(weights)
    if "method" in metadata:
        network = rheobase.prepare(network, metadata["method"])
    checkpoints.load_weights(network, weights)
    return network.eval()


def _shape(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not a shape: give whole numbers such as 3,32,32") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of steps: give whole numbers such as 8,16,32") from None


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise ValueError(f"{text!r} is not of the form name=value")
    return name, value


def _settings(pairs: list[str]) -> dict[str, Any]:
    return {name: _value(value) for name, value in map(_pair, pairs)}


def _value(text: str) -> Any:
    for known, value in (("true", True), ("false", False), ("none", None)):
        if text.lower() == known:
            return value
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
