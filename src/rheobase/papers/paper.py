"""The shape of a paper's printed results."""

from dataclasses import dataclass

from rheobase.io import find_name


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        label: What the paper calls the method.
        method: The name it would have in this package.
        ann: Percent right of the network before conversion.
        accuracy: Percent right after so many steps; None where the paper prints a dash.
        note: What is known about this line: how its network differs, how many steps a column stands for.
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
        table: Where it stands.
        model: The network's name in `rheobase.training.models`.
        dataset: The dataset's name in `rheobase.training.datasets`, or of a folder of pictures.
        recipe: The training's name in `rheobase.training.recipe`.
        rows: The lines; the last is the paper's own.
        size: Width of the pictures, where the dataset is a folder of them.
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
        mflop: Millions of operations of the ordinary network for one image.
        msop: Millions of synaptic operations of the spiking one.
        ann_millijoules: What the first are said to cost.
        snn_millijoules: What the second are said to cost.
        ratio: How many times less the spiking network is said to need.
        steps: Time steps of the spiking one.
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
        figure: Which.
        cell: The network and dataset.
        label: The method as the paper calls it.
        method: The name it would have in this package.
        steps: Time steps.
        zero: Percent right from a start at zero.
        half: Percent right from a start at half the threshold.
    """

    figure: str
    cell: str
    label: str
    method: str
    steps: int
    zero: float
    half: float


@dataclass(frozen=True)
class Original:
    """What is reported of another method on its own networks, where the paper's tables lack it.

    Attributes:
        cell: The network and dataset of the paper that it comes nearest to.
        label: The method as the paper calls it.
        method: The name it has in this package.
        ann: Percent right of the network before conversion, where it is known.
        accuracy: Percent right after so many steps.
        network: How the network differs from the cell's.
        source: Where the numbers stand.
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
    """A paper: where it appeared and everything it prints that can be measured.

    Attributes:
        name: Short name.
        title: Full title.
        citation: Authors, venue and year.
        method: Its own method's name in this package.
        initial: How membranes start in it.
        steps: The columns of its tables.
        columns: How they are headed.
        cells: The blocks of its tables.
        energy: The columns of its energy table.
        claims: What it says about other methods.
        originals: What else is reported of those methods.
        best_start: Between which fractions of the threshold it finds the best start.
        warnings: What a reader should know about where the numbers come from.
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
