"""Bu, Ding, Yu and Huang: the start at half the threshold.

Tables 1 to 3, the energy table and the claims around its figures, digit for digit; a dash is None.
"""

from rheobase.papers.paper import Cell, Claim, Energy, Original, Paper, Row

_STEPS = (8, 16, 32, 64, 128, 256, 512)
_NO_NORM_VGG = (
    "Its VGG-16 has no batch norm, no biases, four average pools and a head of 2048, 4096 and 4096."
)
_NO_NORM_RESNET = (
    "Its ResNet-20 is nearer to a ResNet-18: a stem of three 3×3 convolutions and a pool, widths of 64 to "
    "512, no batch norm, no biases."
)
_ONE_LINEAR = "Its VGG-16 has a single linear layer as head."
_SPIKING_POOLS = "Its VGG-16 has spiking average pools and a single linear layer as head."
_TWO_MORE_LAYERS = (
    "The network has two more layers than the standard ResNet-18: its stem has three convolutions."
)
_WIDE = "Its ResNet-20 has widths of 64, 128 and 256 instead of 16, 32 and 64."
_RERUN = "It seems run by the authors of Calibration on their network, not by its own."
_UNAUGMENTED = "The same VGG-16, trained without augmentation."
_LONG = "T≥512 stands for 2,500 steps."
_HYBRID_COLUMNS = "T=128 stands for 100 steps and T=256 for 250."


def _row(label: str, method: str, ann: float, printed: str, note: str = "") -> Row:
    values = [None if word == "-" else float(word) for word in printed.split()]
    return Row(label, method, ann, dict(zip(_STEPS, values, strict=True)), note)


_VGG16_CIFAR10 = (
    _row(
        "Robust Norm", "robust-norm", 92.82, "- 10.11 43.03 81.52 90.80 92.75 92.75",
        "The paper's own implementation, it seems on the network of the RNL row.",
    ),
    _row("Spike Norm", "spike-norm", 91.70, "- - - - - - 91.55", f"{_NO_NORM_VGG} {_LONG}"),
    _row("Hybrid Train", "hybrid", 92.81, "- - - - 91.13 - 92.48", f"{_NO_NORM_VGG} {_HYBRID_COLUMNS}"),
    _row("RMP", "rmp", 93.63, "- - 60.30 90.35 92.41 93.04 93.63", f"{_NO_NORM_VGG} T≥512 stands for 2,048."),
    _row("TSC", "tsc", 93.63, "- - - 92.79 93.27 93.45 93.63", _NO_NORM_VGG),
    _row("Opt.", "opt", 95.72, "- - 76.24 90.64 94.11 95.33 95.73", f"{_RERUN} {_SPIKING_POOLS}"),
    _row("RNL", "rnl", 92.82, "- 57.90 85.40 91.15 92.51 92.95 92.95", _UNAUGMENTED),
    _row("Calibration", "calibration", 95.72, "- - 93.71 95.14 95.65 95.79 95.79", _SPIKING_POOLS),
    _row("Ours", "opi", 94.57, "90.96 93.38 94.20 94.45 94.50 94.49 94.55"),
)  # fmt: skip
_RESNET20_CIFAR10 = (
    _row("Spike-Norm", "spike-norm", 89.10, "- - - - - - 87.46", f"{_NO_NORM_RESNET} {_LONG}"),
    _row("Hybrid Train", "hybrid", 93.15, "- - - - - 92.22 92.94", f"{_NO_NORM_RESNET} {_HYBRID_COLUMNS}"),
    _row("RMP", "rmp", 91.47, "- - - - 87.60 89.37 91.36", _NO_NORM_RESNET),
    _row("TSC", "tsc", 91.47, "- - - 69.38 88.57 90.10 91.42", _NO_NORM_RESNET),
    _row("Ours", "opi", 92.74, "66.24 87.22 91.88 92.57 92.73 92.76 92.75"),
)
_RESNET18_CIFAR10 = (
    _row("Opt.", "opt", 95.46, "- - 84.06 92.48 94.68 95.30 94.42", f"{_RERUN} {_TWO_MORE_LAYERS}"),
    _row("Calibration", "calibration", 95.46, "- - 94.78 95.30 95.42 95.41 95.45", _TWO_MORE_LAYERS),
    _row("Ours", "opi", 96.04, "75.44 90.43 94.82 95.92 96.08 96.06 96.06"),
)
_VGG16_CIFAR100 = (
    _row("Spike-Norm", "spike-norm", 71.22, "- - - - - - 70.77", f"{_NO_NORM_VGG} {_LONG}"),
    _row("RMP", "rmp", 71.22, "- - - - 63.76 68.34 70.93", _NO_NORM_VGG),
    _row("TSC", "tsc", 71.22, "- - - - 69.86 70.65 70.97", _NO_NORM_VGG),
    _row("Opt.", "opt", 77.89, "- - 7.64 21.84 55.04 73.54 77.71", f"{_RERUN} {_SPIKING_POOLS}"),
    _row("Calibration", "calibration", 77.89, "- - 73.55 76.64 77.40 77.68 77.87", _SPIKING_POOLS),
    _row("Ours", "opi", 76.31, "60.49 70.72 74.82 75.97 76.25 76.29 76.31"),
)
_RESNET20_CIFAR100 = (
    _row("Spike-Norm", "spike-norm", 69.72, "- - - - - - 64.09", f"{_NO_NORM_RESNET} {_LONG}"),
    _row("RMP", "rmp", 68.72, "- - 27.64 46.91 57.69 64.06 67.82", _NO_NORM_RESNET),
    _row("TSC", "tsc", 68.72, "- - - - 58.42 65.27 68.18", _NO_NORM_RESNET),
    _row("Ours", "opi", 70.43, "23.09 52.34 67.18 69.96 70.51 70.59 70.53"),
)
_RESNET18_CIFAR100 = (
    _row("Opt.", "opt", 77.16, "- - 51.27 70.12 75.81 77.22 77.19", f"{_RERUN} {_TWO_MORE_LAYERS}"),
    _row("Calibration", "calibration", 77.16, "- - 76.32 77.29 77.73 77.63 77.25", _TWO_MORE_LAYERS),
    _row("Ours", "opi", 79.36, "57.70 72.85 77.86 78.98 79.20 79.26 79.28"),
)
_VGG16_IMAGENET = (
    _row("RMP", "rmp", 73.49, "- - - - - 48.32 73.09", "Its VGG-16 has no batch norm and no biases."),
    _row("TSC", "tsc", 73.49, "- - - - - 69.71 73.46", "Its VGG-16 has no batch norm and no biases."),
    _row("Opt.", "opt", 75.36, "- - 0.114 0.118 0.122 1.81 73.88", _RERUN),
    _row("Calibration (advanced)", "calibration", 75.36, "- - 63.64 70.69 73.32 74.23 75.32"),
    _row("Ours", "opi", 74.85, "6.25 36.02 64.70 72.47 74.24 74.62 74.69"),
)


_QUOTED = "As this paper quotes it; 200 steps as the QCFS paper (Bu et al., ICLR 2022) does."
_README = "The README of its authors' code, whose scripts run 32 steps whatever they are told."
_ORIGINALS = (
    Original(
        "vgg16-cifar10", "Hybrid Train", "hybrid", 92.81, {100: 91.13, 200: 92.02}, _NO_NORM_VGG, _QUOTED
    ),
    Original("resnet20-cifar10", "Hybrid Train", "hybrid", 93.15, {250: 92.22}, _NO_NORM_RESNET, _QUOTED),
    Original("vgg16-cifar10", "Calibration (light)", "calibration", 95.76, {16: 93.30}, _ONE_LINEAR, _README),
    Original(
        "vgg16-cifar10", "Calibration (advanced)", "calibration", 95.76, {16: 93.65}, _ONE_LINEAR, _README
    ),
    Original("resnet20-cifar10", "Calibration (light)", "calibration", 95.68, {16: 93.89}, _WIDE, _README),
    Original("resnet20-cifar10", "Calibration (advanced)", "calibration", 95.68, {16: 94.33}, _WIDE, _README),
    Original(
        "vgg16-cifar100", "Calibration (light)", "calibration", 77.98, {16: 65.26}, _ONE_LINEAR, _README
    ),
    Original(
        "vgg16-cifar100", "Calibration (advanced)", "calibration", 77.98, {16: 70.91}, _ONE_LINEAR, _README
    ),
    Original("resnet20-cifar100", "Calibration (light)", "calibration", 76.52, {16: 73.89}, _WIDE, _README),
    Original(
        "resnet20-cifar100", "Calibration (advanced)", "calibration", 76.52, {16: 74.48}, _WIDE, _README
    ),
    Original(
        "vgg16-imagenet", "TCL", "tcl", None, {250: 73.87}, "", "The abstract of its paper; about 250 steps."
    ),
)


def _cell(title: str, table: str, model: str, dataset: str, rows: tuple[Row, ...]) -> Cell:
    name = f"{model}-{dataset}"
    return Cell(name, title, table, model, dataset, name, rows, 224 if dataset == "imagenet" else None)


PAPER = Paper(
    name="opi2022",
    title="Optimized Potential Initialization for Low-latency Spiking Neural Networks",
    citation="T. Bu, J. Ding, Z. Yu and T. Huang, AAAI 2022",
    method="opi",
    initial="half",
    steps=_STEPS,
    columns=(*(f"T={t}" for t in _STEPS[:-1]), f"T≥{_STEPS[-1]}"),
    cells=(
        _cell("VGG-16 on CIFAR-10", "table 1", "vgg16", "cifar10", _VGG16_CIFAR10),
        _cell("ResNet-20 on CIFAR-10", "table 1", "resnet20", "cifar10", _RESNET20_CIFAR10),
        _cell("ResNet-18 on CIFAR-10", "table 1", "resnet18", "cifar10", _RESNET18_CIFAR10),
        _cell("VGG-16 on CIFAR-100", "table 2", "vgg16", "cifar100", _VGG16_CIFAR100),
        _cell("ResNet-20 on CIFAR-100", "table 2", "resnet20", "cifar100", _RESNET20_CIFAR100),
        _cell("ResNet-18 on CIFAR-100", "table 2", "resnet18", "cifar100", _RESNET18_CIFAR100),
        _cell("VGG-16 on ImageNet", "table 3", "vgg16", "imagenet", _VGG16_IMAGENET),
    ),
    energy=(
        Energy("vgg16-cifar10", 332.973, 869.412, 4.162, 0.067, 62, steps=32),
        Energy("resnet20-cifar10", 41.219, 179.060, 0.515, 0.0138, 37, steps=32),
    ),
    claims=(  # around figure 4
        Claim("resnet20-cifar10", "RMP", "rmp", 64, zero=67, half=87),
        Claim("resnet20-cifar10", "RNL", "rnl", 64, zero=45, half=82),
        Claim("resnet20-cifar10", "RNL", "rnl", 32, zero=25, half=70),
    ),
    originals=_ORIGINALS,
    best_start=(0.4, 0.6),
    warnings=(
        "The last column of the tables stands for 512 steps or more; measured is 512.",
        "The rows Opt. and Calibration share their ANN accuracies to the digit: the Opt. rows look like a "
        "re-run of that method on Calibration's networks, not like its authors' own numbers.",
        "The Robust Norm row has the ANN accuracy of the RNL row: it was probably made on that network.",
        "The row of ResNet-18 on CIFAR-10 (96.04; 75.44 … 96.06 at 8 … 256 steps) is digit for digit what "
        "the QCFS paper (Bu et al., ICLR 2022) prints for ResNet-18 at 2 … 64 steps. One of the two is "
        "mislabelled; the neighbouring rows suggest that this one is right.",
        "Networks of one name differ between papers: Opt. and Calibration add two layers to ResNet-18, and "
        "several papers' ResNet-20 is not the 16-32-64 network of this one.",
        "The energy table was made with the ten classes of CIFAR-10, with VGG-16's two hidden layers of 4096 "
        "and the 16-32-64 ResNet-20; its operations are those the counter thop 0.0.31 gives.",
        "TCL trains the same clips and has the same neurons as this paper's method, and starts at zero: what "
        "is measured of opi from zero is also its.",
    ),
)
