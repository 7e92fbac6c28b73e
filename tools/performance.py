"""The tables of docs/performance.md, and the README's tables of speeds and of SpikingJelly."""

from collections.abc import Callable, Sequence
from statistics import fmean, median

from rheobase.papers.records import Record
from rheobase.reports import DASH, number, significant
from tools.markdown import table
from tools.measured import COMPILED, CONTENDERS, MODELS, PEER, best, milliseconds, read, results, speed

GPU, CPU = "simulation-h200", "simulation-cpu"
GRID = (
    "simulation-grid-h200", "simulation-grid-resnet18-h200", "simulation-one-image-h200",
    "simulation-one-image-ahead-h200", "simulation-one-image-beside-h200",
)  # fmt: skip
"""All contenders at many sizes with an older version, and single images with later ones."""
PROFILES = ("exact", "fast", "int8")
VERBS = (
    *(("verbs-h200", model) for model in ("vgg16", "resnet20", "resnet18")), ("verbs-cpu", "resnet20"),
)  # fmt: skip
SINGLE = {"verbs-h200": "verbs-single-h200"}
"""Records of single images that were timed in a run of their own."""
_STEPS = 32


def _speed(value: float | None, peer: float | None) -> str:
    if value is None:
        return DASH
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return text if peer is None or value == peer else f"{text} ({value / peer:.1f}×)"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def verbs_speed() -> str:
    """Images per second of `evaluate` on a GPU and of `simulate` on a CPU, each beside its limit."""
    lines = []
    for name, model in VERBS:
        record = read(name)
        batch, steps = record["options"]["batch"], record["options"]["steps"]
        cpu = "H200" not in record["device"]
        way, images = ("simulate", batch) if cpu else ("evaluate", record["options"]["images"])
        peer = _verb(name, model, PEER, "")[batch]
        device = f"CPU, {record['threads']} threads" if cpu else record["device"]
        cells = [_speed(_verb(name, model, way, profile)[images], peer) for profile in PROFILES]
        limits = [_speed(_verb(name, model, "prepared", profile)[batch], None) for profile in PROFILES[1:]]
        title = f"{MODELS[model]}, {device}, batch {batch}, {way}"
        lines.append((title, _speed(peer, None), *cells, " / ".join(limits)))
        assert steps == _STEPS
    head = (f"Images per second, T = {_STEPS}", f"{PEER}, best", *PROFILES, "prepared: fast / int8")
    return table(head, lines)


def verbs() -> str:
    """What the verbs do with their defaults, beside a prepared simulator that counts nothing."""
    lines = []
    for name, model in VERBS:
        options, device = read(name)["options"], read(name)["device"]
        batch, many = options["batch"], options["images"]
        for profile in PROFILES:
            simulate, evaluate, prepared = (
                _verb(name, model, way, profile) for way in ("simulate", "evaluate", "prepared")
            )
            limits = prepared[batch], prepared.get(many, prepared[batch])
            found = zip((simulate[batch], evaluate[many]), limits, strict=True)
            shares = [f"{speed:,.0f} ({speed / limit:.0%})" for speed, limit in found]
            ways = (("simulate", profile), ("prepared", profile), (PEER, ""))
            one = [_verb(SINGLE.get(name, name), model, *way)[1] for way in ways]
            limit = " / ".join(dict.fromkeys(f"{limit:,.0f}" for limit in limits))
            times = [significant(1e3 / speed) for speed in one]
            lines.append((f"{MODELS[model]}, {device}, {profile}", *shares, limit, *times))
    head = (
        "", "simulate, images/s", "evaluate, images/s", "prepared, images/s: one batch / many",
        "one image, T = 8: simulate, ms", "prepared, ms", f"{PEER}, ms",
    )  # fmt: skip
    record = read("verbs-cpu")
    firing = fmean(row["firing"] for row in record["rows"] if "firing" in row)
    return (
        f"{table(head, lines)}\n\nOn the CPU the weights were {record['weights']}, and {firing:.1%} of the "
        "neurons fired at a step."
    )


def _verb(name: str, model: str, way: str, profile: str) -> dict[int, float]:
    """Images per second in a record of verbs, by the number of images."""
    return {
        row["images"]: row["images_per_second"]
        for row in read(name)["rows"]
        if (row["model"], row["profile"]) == (model, profile) and row["way"].startswith(way)
    }


def imagenet_size() -> str:
    """A large network at 224 pixels by `evaluate`, next to its compiled ANN."""
    record = read("imagenet-size-h200")
    passes = next(row for row in record["rows"] if row["way"] == "compiled passes")
    lines = []
    for row in record["rows"]:
        share = row["median"] / row["steps"] * passes["steps"] / passes["median"]
        speed = f"{row['images_per_second']:,.0f}"
        memory = _gib(row["peak_bytes"])
        way = row["way"].replace("compiled passes", "compiled ANN, T times")
        lines.append((f"{way}, T = {row['steps']}", speed, f"{share:.2f}", memory))
    options = record["options"]
    title = f"{options['model']}, {record['device']}, batch {options['batch']}"
    return table((title, "images/s", "time / time of the ANN", "peak memory, GiB"), lines)


def converting() -> str:
    """The verbs before a simulation on one core, relative to forward passes over the same inputs."""
    record = read("converting-cpu")
    found = {(row["model"], row["way"]): row for row in record["rows"]}
    lines = []
    for model in dict.fromkeys(row["model"] for row in record["rows"]):
        passes, *timed = (found[model, way] for way in ("forward passes", *_CONVERTING))
        ratios = [f"{row['median'] / passes['median']:.1f}×" if "median" in row else DASH for row in timed]
        seconds = [significant(found[model, way]["median"]) for way in ("inspect", "save", "load")]
        title = f"{(MODELS | _LARGER)[model]}, {passes['inputs']} inputs"
        lines.append((title, significant(passes["median"]), *ratios, *seconds))
    head = ("", "forward passes, s", *_CONVERTING.values(), "inspect, s", "save, s", "load, s")
    timed = [row for row in record["rows"] if "median" in row]
    spread = 100 * median((row["slowest"] - row["fastest"]) / row["median"] for row in timed)
    return f"{table(head, lines)}\n\nHalf of the times spread by less than {spread:.0f} % of their median."


_CONVERTING = {
    PEER: f"{PEER}'s converter", "convert": "convert", "convert, sigma-delta": "sigma-delta",
    "convert, then ftbc": "then ftbc", "convert, calibration": "calibration",
}  # fmt: skip
_LARGER = {
    "mobile": "mobile network, 224 pixels", "vit": "ViT, 32 pixels", "convnext": "ConvNeXt, 32 pixels",
    "bert-base": "BERT-base, 64 tokens",
}  # fmt: skip


def conversions() -> str:
    """Mean accuracy of the same trained networks, converted by SpikingJelly and by this package."""
    record = read("spikingjelly-digits")
    lines = [
        (name, *(number(fmean(values), 1) for values in zip(*runs, strict=True)))
        for name, runs in record["accuracy"].items()
    ]
    options, versions = record["options"], record["versions"]
    text = (
        f"Mean of {options['seeds']} networks trained on the digits; {options['samples']} calibration images "
        f"and {options['images']} test images, the same for all. The ANNs have "
        f"{number(fmean(record['ann']), 1)} %. SpikingJelly {versions['spikingjelly']}."
    )
    return f"{table(('Accuracy, %', *(f'T = {t}' for t in record['steps'])), lines)}\n\n{text}"


def gpu_speed() -> str:
    """Images per second at batch 512 and T = 32, and the ratios that matter."""
    speeds = {c: {m: speed(GPU, c, m, 512, 32) or 0.0 for m in MODELS} for c in CONTENDERS.values()}
    lines = [
        (name, *(f"{speeds[contender][m]:,.0f}" for m in MODELS)) for name, contender in CONTENDERS.items()
    ]

    def ratio(label: str, above: str, below: str, form: str) -> None:
        lines.append((label, *(form.format(speeds[above][m] / speeds[below][m]) for m in MODELS)))

    ratio("fast relative to SpikingJelly", "rheobase, fast", PEER, "{:.1f}×")
    ratio("int8 relative to SpikingJelly", "rheobase, int8", PEER, "{:.1f}×")
    ratio("exact relative to the plain loop", "rheobase, exact", "a plain step loop", "{:.1f}×")
    ratio("time of fast / time of the compiled ANN, T times", COMPILED, "rheobase, fast", "{:.2f}")
    return table(("", *MODELS.values()), lines)


def gpu_step_cost() -> str:
    """Milliseconds that one more step costs at batch 512, from T = 8 to T = 512."""
    lines = []
    for model, title in MODELS.items():
        values = []
        for profile in PROFILES:
            few, many = (milliseconds((GPU,), f"rheobase, {profile}", model, 512, t) or 0.0 for t in (8, 512))
            values.append((many - few) / 504)
        values.append((milliseconds((GPU,), COMPILED, model, 512, 32) or 0.0) / 32)
        lines.append((title, *(f"{value:.2f}" for value in values)))
    return table(("ms per step, batch 512", *PROFILES, "compiled ANN, once"), lines)


def cpu_slower() -> str:
    """The sizes at which others are faster on the CPU."""
    return _slower((CPU,))


def gpu_slower() -> str:
    """The sizes at which others were faster on the GPU."""
    return _slower(GRID)


def _slower(names: Sequence[str]) -> str:
    sizes = sorted({(r["model"], r["batch"], r["steps"]) for name in names for r in read(name)["rows"]})
    lines = []
    for label, other in ((PEER, PEER), ("the compiled ANN, T times", COMPILED)):
        for profile in PROFILES:
            slower: dict[tuple[str, int], list[str]] = {}
            for model, batch, steps in sizes:
                size = model, batch, steps
                own, theirs = (_fastest(names, c, *size) for c in (f"rheobase, {profile}", other))
                if own is not None and theirs is not None and own < theirs:
                    slower.setdefault((model, batch), []).append(str(steps))
            places = (f"{MODELS[m]}, batch {b}, T = {', '.join(steps)}" for (m, b), steps in slower.items())
            lines.append(f"- `{profile}` is slower than {label}: {'; '.join(places) or 'nowhere'}.")
    return "\n".join(lines)


def _fastest(names: Sequence[str], contender: str, model: str, batch: int, steps: int) -> float | None:
    found = (speed(name, contender, model, batch, steps) for name in names)
    return max((each for each in found if each is not None), default=None)


def gpu_memory() -> str:
    """Peak memory at batch 512 and T = 32."""
    shown = {PEER: PEER} | {profile: f"rheobase, {profile}" for profile in PROFILES}
    lines = []
    for model, title in MODELS.items():
        found = (best(GPU, contender, model, 512, 32) for contender in shown.values())
        lines.append((title, *(_gib(row["peak_bytes"]) if row else DASH for row in found)))
    return table(("Peak memory, GiB", *shown), lines)


def gpu_layers() -> str:
    """TFLOP/s of single layers."""
    layers = read("conv-integrate-fire-h200")["layers"]
    columns = {
        "unfused fp16": "convolution, then scan", "fp16 × fp16": "fused, float16",
        "fp32 × fp16": "fused, float32 in two halves", "int8 × uint8": "fused, int8",
    }  # fmt: skip
    shown = (
        "64→64 3² on 32²", "128→128 3² on 16²", "256→256 3² on 8²", "512→512 3² on 4²", "512→512 3² on 2²",
        "4096→4096 1² on 1²", "64→64 3² on 32² + residual", "16→16 3² on 32²",
    )  # fmt: skip
    lines = [(name, *(f"{layers[name][c]['tflops']:,.0f}" for c in columns)) for name in shown]
    return table(("Layer, TFLOP/s", *columns.values()), lines)


def profile_gaps() -> str:
    """Largest differences of accuracy between a profile and `exact`, in points, by range of steps."""
    ranges = ((1, 7), (8, 15), (16, 31), (32, 63), (64, 128))
    rounded = "weights rounded to half precision"
    lines = []
    for label, model, dataset, profile, shown, against in (
        (f"VGG-16, CIFAR-10, fast, {rounded} in both", "vgg16", "cifar10", "fast", "figure 3", "energy"),
        (f"VGG-16, CIFAR-10, exact, {rounded}", "vgg16", "cifar10", "exact", "energy", "table"),
        ("VGG-16, CIFAR-100, fast", "vgg16", "cifar100", "fast", "figure 3", "table"),
        (f"VGG-16, CIFAR-100, fast, {rounded}", "vgg16", "cifar100", "fast", "figure 2", "table"),
        ("ResNet-20, CIFAR-100, fast", "resnet20", "cifar100", "fast", "figure 3", "table"),
        ("ResNet-20, CIFAR-10, fast, on a CPU", "resnet20", "cifar10", "fast", "table 1", "table"),
        ("ResNet-20, CIFAR-10, int8, on a CPU", "resnet20", "cifar10", "int8", "table 1", "table"),
        ("ResNet-20, CIFAR-10, exact, sums in another order", "resnet20", "cifar10", "exact", "figure 3",
         "table"),
    ):  # fmt: skip
        found = [r for r in _half_starts() if (r.model, r.dataset) == (model, dataset)]
        (exact,) = (r for r in found if r.table.startswith(against) and r.profile == "exact")
        (other,) = (r for r in found if (r.table, r.profile) == (shown, profile))
        lines.append((label, *(_gap(exact, other, low, high) for low, high in ranges)))
    return table(("Points", "1 to 7", *(f"{low} to {high}" for low, high in ranges[1:])), lines)


def _half_starts() -> list[Record]:
    """Records of the paper's own method and training, seed 0, from half the threshold."""
    wanted = ("opi", "half", 0, "")
    return [r for r in results() if (r.method, r.initial, r.seed, r.label) == wanted and r.accuracy]


def _gap(exact: Record, other: Record, low: int, high: int) -> str:
    both = [t for t in exact.accuracy if low <= t <= high and t in other.accuracy]
    if not both:
        return DASH
    return number(max(abs(exact.accuracy[t] - other.accuracy[t]) for t in both))


def training() -> str:
    """Seconds per epoch."""
    names = ("training-vgg16-resnet18-h200", "training-h200", "training-vgg16-h200", "training-kernels-h200")
    rows = {row["what"]: row for name in names for row in read(name)["rows"]}
    lines = []
    for model, title in MODELS.items():
        ways = [rows.get(f"{model}, {way}") for way in ("call by call", "compiled", "kernels")]
        seconds = (DASH if row is None else f"{row['median']:.2f}" for row in ways)
        first = (DASH if row is None else f"{row['first']:.1f}" for row in ways[1:])
        lines.append((title, *seconds, *first))
    head = "first epoch, s: compiled", "kernels"
    return table(("Seconds per epoch", "call by call", "compiled", "kernels", *head), lines)


def cpu_speed() -> str:
    """Images per second of ResNet-20 at batch 32."""
    return _cpu_table([("resnet20", 32, t) for t in (8, 32, 128)], "ResNet-20, batch 32")


def cpu_one_image() -> str:
    """Images per second of single images."""
    return _cpu_table([(m, 1, t) for m in ("resnet20", "vgg16", "resnet18") for t in (8, 32)], "Batch 1")


def cpu_batches() -> str:
    """Images per second of ResNet-20 at larger batches."""
    sizes = [("resnet20", batch, t) for batch in (64, 512) for t in (4, 8, 32)]
    return _cpu_table(sizes, "ResNet-20")


def _cpu_table(sizes: Sequence[tuple[str, int, int]], title: str) -> str:
    heads, last = [], None
    for model, batch, steps in sizes:
        varies = len({s[0] for s in sizes}) > 1, len({s[1] for s in sizes}) > 1
        group = f"{MODELS[model]}, " if varies[0] else f"batch {batch}, " if varies[1] else ""
        heads.append(f"T = {steps}" if group == last else f"{group}T = {steps}")
        last = group
    lines = []
    for name, contender in CONTENDERS.items():
        speeds = (speed(CPU, contender, *size) for size in sizes)
        lines.append((name, *(DASH if s is None else f"{s:,.1f}" for s in speeds)))
    return table((f"{title}, images per second", *heads), lines)


def cpu_kernels() -> str:
    """Milliseconds of the kernels that only move memory."""
    results = read("streaming-kernels-cpu")["results"]
    cases = {
        "integrate and fire, float32 currents and spikes": "scalar threshold",
        "integrate and fire, one-byte spikes": "one-byte spikes",
        "integrate and fire, constant current, float32 spikes": "constant current",
        "neurons that take spikes back": "a spike taken back",
        "groups of two members, with their events": "two members",
        "sum over 2 × 2 pixels": "pooling",
        "count spikes": "counting spikes",
        "count spikes and synapses": "counting spikes and synapses",
    }
    lines = []
    for label, case in cases.items():
        found = (results[case].get(way) for way in ("reference", "cpu", "copy"))
        lines.append((label, *(DASH if f is None else f"{f['median_ms']:.1f}" for f in found)))
    return table(("Milliseconds", "plain torch", "rheobase", "a copy of the same size"), lines)


def cpu_layers() -> str:
    """Images per second over all 18 layers of ResNet-20 that take spikes."""
    record = read("conv-integrate-fire-cpu")
    how_often = dict.fromkeys(record["layers"], 3) | _FEWER_LAYERS
    lines = []
    for way in next(iter(record["layers"].values())):
        taken = sum(how_often[name] * layer[way]["median_ms"] for name, layer in record["layers"].items())
        lines.append((way, f"{1e3 * record['options']['batch'] / taken:.1f}"))
    return table(("Layers of ResNet-20 alone, T = 32", "images per second"), lines)


def cpu_load() -> str:
    """Milliseconds of several pieces of work alone, and next to as many endless loops as there are cores."""
    lines, order = [], ("simulate", "rheobase", "train", "fine-tune", "plain")
    rows = read("under-load-cpu")["rows"]
    for row in sorted(rows, key=lambda row: order.index(row["work"].replace(",", "").split()[0])):
        alone, busy = (significant(1e3 * median(row[key])) for key in ("alone", "busy"))
        lines.append((row["work"].replace(", 1 images", ", one image"), alone, busy, f"{row['ratio']:.1f}×"))
    return table(("Milliseconds", "alone", "next to busy loops", "ratio"), lines)


_FEWER_LAYERS = {
    "16→32 3² by 2 on 32²": 1, "32→32 3² on 16²": 2, "32→64 3² by 2 on 16²": 1, "64→64 3² on 8²": 2,
}  # fmt: skip

BLOCKS: dict[str, Callable[[], str]] = {
    "speed": verbs_speed,
    "verbs": verbs,
    "imagenet-size": imagenet_size,
    "spikingjelly": conversions,
    "gpu-speed": gpu_speed,
    "gpu-step-cost": gpu_step_cost,
    "gpu-slower": gpu_slower,
    "gpu-memory": gpu_memory,
    "gpu-layers": gpu_layers,
    "profile-gaps": profile_gaps,
    "training": training,
    "cpu-speed": cpu_speed,
    "cpu-one-image": cpu_one_image,
    "cpu-batches": cpu_batches,
    "cpu-slower": cpu_slower,
    "cpu-kernels": cpu_kernels,
    "cpu-layers": cpu_layers,
    "cpu-load": cpu_load,
    "converting": converting,
}
