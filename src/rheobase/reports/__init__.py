"""Self-contained HTML pages about a run, a diagnosis or a comparison, and the records they are drawn from."""

from rheobase.reports.comparison_page import comparison_page, gains_table, joined_page, page_of
from rheobase.reports.curves import Axis, Curve, draw_curves, draw_gains, draw_heat_map
from rheobase.reports.diagnosis_page import diagnosis_page
from rheobase.reports.drawing import Panel
from rheobase.reports.pages import Section, escape_markdown, standalone, to_markdown, write_page
from rheobase.reports.run_page import accuracy_figure, evaluation_page
from rheobase.reports.run_record import RunRecord, record_diagnosis, record_evaluation
from rheobase.reports.tables import DASH, Line, Table, number, significant

__all__ = [
    "DASH",
    "Axis",
    "Curve",
    "Line",
    "Panel",
    "RunRecord",
    "Section",
    "Table",
    "accuracy_figure",
    "comparison_page",
    "diagnosis_page",
    "draw_curves",
    "draw_gains",
    "draw_heat_map",
    "escape_markdown",
    "evaluation_page",
    "gains_table",
    "joined_page",
    "number",
    "page_of",
    "record_diagnosis",
    "record_evaluation",
    "significant",
    "standalone",
    "to_markdown",
    "write_page",
]
