"""What a paper prints, as data."""

from dataclasses import dataclass

from rheobase.io import find_name


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        label: What the paper calls the method.
        method: Its name in this package.
        ann: Accuracy of the ANN, in percent.
        accuracy: Accuracy by number of steps, in percent; None where the paper prints a dash.
        note: How its network differs, or which number of steps a column stands for.
    """

    label: str
    method: str
    ann: float
    accuracy: dict[int, float | None]
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One network on one dataset: a block of lines in one table.

    Attributes:
        name: Short name.
        title: What the paper calls it.
        table: The table it is in.
        model: The network's name in `rheobase.training.models`.
        dataset: The dataset's name in `rheobase.training.datasets`, or of a folder of images.
        recipe: The training's name in `rheobase.training.recipe`.
        rows: The lines; the last is the paper's own.
        size: Width of the images, if the dataset is a folder of them.
    """

    name: str
    title: str
    table: str
    model: str
    dataset: str
    recipe: str
    rows: tuple[Row, ...]
    size: int | None = None

    @property
    def own(self) -> Row:
        """The paper's own line."""
        return self.rows[-1]


@dataclass(frozen=True)
class Energy:
    """A column of the energy table.

    Attributes:
        cell: The network and dataset.
        mflop: Millions of operations of the ANN per image.
        msop: Millions of synaptic operations of the SNN per image.
        ann_millijoules: Energy of the ANN.
        snn_millijoules: Energy of the SNN.
        ratio: Energy of the ANN over that of the SNN.
        steps: Time steps of the SNN.
    """

    cell: str
    mflop: float
    msop: float
    ann_millijoules: float
    snn_millijoules: float
    ratio: float
    steps: int


@dataclass(frozen=True)
class Claim:
    """A sentence on what the half-threshold start adds to another method, read from a figure.

    Attributes:
        cell: The network and dataset.
        label: The method as the paper calls it.
        method: Its name in this package.
        steps: Time steps.
        zero: Accuracy from a start at zero, in percent.
        half: Accuracy from a start at half the threshold, in percent.
    """

    cell: str
    label: str
    method: str
    steps: int
    zero: float
    half: float


@dataclass(frozen=True)
class Original:
    """Results of another method on its own networks that are not in the paper's tables.

    Attributes:
        cell: The most similar network and dataset of the paper.
        label: The method as the paper calls it.
        method: Its name in this package.
        ann: Accuracy of the ANN in percent, if known.
        accuracy: Accuracy by number of steps, in percent.
        network: How the network differs from the cell's.
        source: Where the numbers are published.
    """

    cell: str
    label: str
    method: str
    ann: float | None
    accuracy: dict[int, float]
    network: str
    source: str


@dataclass(frozen=True)
class Paper:
    """A paper: where it was published, and everything it prints that can be measured.

    Attributes:
        name: Short name.
        title: Full title.
        citation: Authors, venue and year.
        method: Its own method's name in this package.
        initial: Its initial potential.
        steps: The columns of its tables.
        columns: Their headings.
        cells: The blocks of its tables.
        energy: The columns of its energy table.
        claims: Its statements about other methods.
        originals: Further published results of those methods.
        best_start: The range, as shares of the threshold, in which it finds the best start.
        warnings: Remarks on the origin of the numbers.
    """

    name: str
    title: str
    citation: str
    method: str
    initial: str
    steps: tuple[int, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    energy: tuple[Energy, ...] = ()
    claims: tuple[Claim, ...] = ()
    originals: tuple[Original, ...] = ()
    best_start: tuple[float, float] | None = None
    warnings: tuple[str, ...] = ()

    def cell(self, name: str) -> Cell:
        """A block of its tables by name.

        Raises:
            ValueError: If there is none; the message suggests the nearest.
        """
        return find_name("cell", name, {cell.name: cell for cell in self.cells}, of=self.name)
