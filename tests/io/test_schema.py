"""Dataclasses as JSON: what comes back, what is refused, and that the message names the field."""

import json
import math
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheobase.io import Digits, conform, ensure_percent, read_document, restore, write_document

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True)
class Part:
    name: str
    loss: float


@dataclass(frozen=True)
class Whole:
    title: str
    count: int
    done: bool
    part: Part
    best: Part | None
    by_step: dict[int, float]
    parts: list[Part]
    tags: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rounded:
    share: Annotated[float, Digits(8)]
    anything: Annotated[Any, Digits(8)] = None

    def __post_init__(self) -> None:
        conform(self)


WHOLE = Whole(
    "a", 3, True, Part("b", 0.5), None, {16: 2.0, 8: 1.0}, [Part("c", 1e-3)], ("x",), {"k": [1, None]}
)


@settings(deadline=None, max_examples=30)
@given(
    title=TEXT,
    by_step=st.dictionaries(st.integers(), st.floats(-1e9, 1e9), max_size=3),
    extra=st.dictionaries(TEXT, JSON, max_size=3),
)
def test_a_document_read_back_is_the_one_written(
    tmp_path_factory: pytest.TempPathFactory, title: str, by_step: dict[int, float], extra: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("documents") / "one.json"
    document = replace(WHOLE, title=title, by_step=by_step, extra=extra)
    write_document(document, path)
    assert read_document(Whole, path) == document


def test_keys_stay_in_order_or_are_sorted_as_numbers(tmp_path: Path) -> None:
    write_document(WHOLE, tmp_path / "kept")
    assert '"by_step": {"16": 2.0, "8": 1.0}' in (tmp_path / "kept").read_text()
    assert (tmp_path / "kept").read_text().startswith('{\n "title"')
    write_document(WHOLE, tmp_path / "sorted", sort_keys=True)
    assert '"by_step": {"8": 1.0, "16": 2.0}' in (tmp_path / "sorted").read_text()
    assert (tmp_path / "sorted").read_text().startswith('{\n "best"')


def test_fields_with_defaults_may_be_missing(tmp_path: Path) -> None:
    content = asdict(WHOLE)
    del content["tags"], content["extra"]
    assert read(content, tmp_path) == replace(WHOLE, tags=(), extra={})


@pytest.mark.parametrize("name", ["title", "count", "part", "by_step"])
def test_other_fields_may_not(tmp_path: Path, name: str) -> None:
    content = asdict(WHOLE)
    del content[name]
    with pytest.raises(ValueError, match=f"document.json.*'{name}'.*missing"):
        read(content, tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("count",), True, "count.*integer.*True"),
        (("count",), 1.5, "count.*integer.*1.5"),
        (("title",), None, "title.*text.*None"),
        (("done",), 1, "done.*true or false"),
        (("part",), "b", "part.*named values.*'b'"),
        (("part", "loss"), "1", r"part\.loss.*number"),
        (("part", "los"), 1.0, r"part\.los"),
        (("parts",), {}, "parts.*list"),
        (("parts", 0, "name"), 1, r"parts\[0\]\.name.*text"),
        (("by_step",), [], "by_step"),
        (("by_step",), {"eight": 1.0}, "key of by_step.*integer.*'eight'"),
        (("by_step",), {"8": "1"}, r"by_step\['8'\].*number"),
        (("tags",), [1], r"tags\[0\].*text"),
        (("part", "loss"), float("nan"), r"part\.loss.*finite"),
        (("extra", "k"), [float("inf")], r"extra\['k'\]\[0\].*finite"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    tmp_path: Path, place: tuple[str | int, ...], value: object, message: str
) -> None:
    content: Any = asdict(WHOLE)
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=f"document.json.*{message}"):
        read(content, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "JSON"), ("[1]", "list"), ("[" * 100_000, "JSON"), ('{"extra": ', "JSON")]
)
def test_a_file_without_fields_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.json.*{message}"):
        read_document(Whole, tmp_path / "x.json")


def test_fields_that_are_nested_too_deeply_are_refused_with_the_file(tmp_path: Path) -> None:
    nested: Any = 1
    for _ in range(900):
        nested = [nested]
    with pytest.raises(ValueError, match=r"document\.json"):
        read(asdict(WHOLE) | {"extra": {"a": nested}}, tmp_path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing at .*x\.json; expected"):
        read_document(Whole, tmp_path / "x.json")
    with pytest.raises(FileNotFoundError, match="a folder at"):
        read_document(Whole, tmp_path)


def test_a_pipe_is_read_as_a_file(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    writer = Thread(target=path.write_text, args=(json.dumps(asdict(WHOLE)),), daemon=True)
    writer.start()
    assert read_document(Whole, path) == WHOLE
    writer.join()


def test_numbers_that_no_float_holds_are_refused() -> None:
    for value in (10**400, -(10**400), math.inf, math.nan):
        with pytest.raises(ValueError, match=r"joules\[1\] should be a finite number"):
            restore(list[float], [1.0, value], "joules")


def test_one_of_several_words() -> None:
    assert restore(Literal["a", "b"], "b", "letter") == "b"
    with pytest.raises(ValueError, match="letter should be one of a, b, got 'c'"):
        restore(Literal["a", "b"], "c", "letter")


def test_what_does_not_fit_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"extra\['a'\].*object"):
        write_document(replace(WHOLE, extra={"a": object()}), tmp_path / "x.json")
    with pytest.raises(TypeError, match="key of extra"):
        write_document(replace(WHOLE, extra={1: 2}), tmp_path / "x.json")  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


def test_numbers_are_rounded_where_the_annotation_says() -> None:
    kept = Rounded(1 / 3, {"a": (2 / 3, 10**12), "b": True})
    assert kept == Rounded(0.33333333, {"a": [0.66666667, 10**12], "b": True})
    assert restore(float, 1 / 3) == 1 / 3
    assert isinstance(Rounded(1).share, float)


def test_percent() -> None:
    ensure_percent("accuracy", 100)
    with pytest.raises(ValueError, match=r"accuracy.*100\.5"):
        ensure_percent("accuracy", 100.5)


def read(content: Any, folder: Path) -> Whole:
    (folder / "document.json").write_text(json.dumps(content))
    return read_document(Whole, folder / "document.json")
