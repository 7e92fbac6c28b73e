"""Input and output: checked batches, atomic files, JSON documents, names, progress, processes, results.

Nothing here knows about networks; every other room may use it.
"""

from rheobase.io.batches import TOKENS, Data, batches, count_batches
from rheobase.io.checks import all_finite, expect_integer
from rheobase.io.environment import find_commit, package_versions
from rheobase.io.files import replace_file, replacing, require_writable
from rheobase.io.names import collect, find_name
from rheobase.io.processes import Ranks, joined, present_ranks
from rheobase.io.progress import announce, display, interruptible, live_table, showing
from rheobase.io.results import Result, Shown, axes_or_new, draw_bars, draw_lines
from rheobase.io.schema import (
    Digits,
    build_document,
    conform,
    ensure_percent,
    read_document,
    read_fields,
    restore,
    write_document,
)
from rheobase.io.tables import format_table
from rheobase.io.tensors import (
    digest,
    load_weights,
    read_tensors,
    read_weights,
    require_finite,
    require_matching,
    save_weights,
    write_tensors,
)

__all__ = [
    "TOKENS",
    "Data",
    "Digits",
    "Ranks",
    "Result",
    "Shown",
    "all_finite",
    "announce",
    "axes_or_new",
    "batches",
    "build_document",
    "collect",
    "conform",
    "count_batches",
    "digest",
    "display",
    "draw_bars",
    "draw_lines",
    "ensure_percent",
    "expect_integer",
    "find_commit",
    "find_name",
    "format_table",
    "interruptible",
    "joined",
    "live_table",
    "load_weights",
    "package_versions",
    "present_ranks",
    "read_document",
    "read_fields",
    "read_tensors",
    "read_weights",
    "replace_file",
    "replacing",
    "require_finite",
    "require_matching",
    "require_writable",
    "restore",
    "save_weights",
    "showing",
    "write_document",
    "write_tensors",
]
