"""Reproducing papers: what they print, what was measured, and the report that compares both.

A paper is one file with a `PAPER`; a record is one JSON file under `results/`.
"""

from rheobase.papers import records, reproduction
from rheobase.papers.candidates import TABLE, Candidate
from rheobase.papers.paper import Paper
from rheobase.papers.records import Record
from rheobase.papers.registry import get, names
from rheobase.papers.report import write_report

__all__ = ["TABLE", "Candidate", "Paper", "Record", "get", "names", "records", "reproduction", "write_report"]
