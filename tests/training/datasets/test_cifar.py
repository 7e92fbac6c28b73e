"""CIFAR: the official layout, files that are damaged or hostile, and fetching the archive."""

import hashlib
import io
import os
import pickle
import struct
import tarfile
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheobase.training.datasets import cifar, find, load, registry
from rheobase.training.datasets.cifar10 import SOURCE as CIFAR10
from rheobase.training.datasets.cifar100 import SOURCE as CIFAR100


def fake_rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def python2_pickle(rows: np.ndarray, labels: list[int]) -> bytes:
    """Spell out the opcodes of the published files, which a Python 2 with numpy 1 wrote."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    shape = b"M" + struct.pack("<H", rows.shape[0]) + b"M" + struct.pack("<H", rows.shape[1]) + b"\x86"
    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    kind += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    raw = b"T" + struct.pack("<I", rows.nbytes) + rows.tobytes()
    state = b"(K\x01" + shape + kind + b"\x89" + raw + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + state + text(b"labels") + listed + b"u."


@pytest.fixture
def fake10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CIFAR-10 of twelve training and three test images, with the digests of just these."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    source = replace(CIFAR10, train={f"data_batch_{i}": 2 + i for i in (1, 2, 3)})
    source = replace(source, test={"test_batch": 3})
    digests = {}
    for half, files in (("train", source.train), ("test", source.test)):
        parts = [(fake_rows(n, len(half) + n), [(i * 7 + n) % 10 for i in range(n)]) for n in files.values()]
        for (rows, labels), file in zip(parts, files, strict=True):
            (folder / file).write_bytes(python2_pickle(rows, labels))
        digests[half] = cifar.digest(
            np.concatenate([rows for rows, _ in parts]), [label for _, labels in parts for label in labels]
        )
    names = {b"label_names": [f"kind {i}".encode() for i in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names))
    monkeypatch.setitem(registry._registry(), "cifar10", replace(source, digests=digests))
    return tmp_path


def test_cifar10_is_read_from_its_official_layout(fake10: Path) -> None:
    data = load("cifar10", fake10)
    assert data.classes[3] == "kind 3"
    assert (len(data.train), len(data.test)) == (12, 3)
    first = fake_rows(3, len("train") + 3)
    assert torch.equal(data.train.images[:3], torch.from_numpy(first).view(3, 3, 32, 32))
    assert data.train.labels[:3].tolist() == [3, 0, 7]
    assert data.train.mean == (0.4914, 0.4822, 0.4465)


def test_the_root_is_found_in_the_environment(fake10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHEOBASE_DATA", str(fake10))
    assert len(load("cifar10").train) == 12
    monkeypatch.setenv("RHEOBASE_DATA", "")
    monkeypatch.setenv("HOME", str(fake10 / "nobody"))
    with pytest.raises(
        FileNotFoundError, match=r"nobody/\.cache/rheobase/cifar-10-batches-py.*https://.*--root"
    ):
        load("cifar10")


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("key", [str, str.encode])
def test_cifar100_is_read_however_it_was_pickled(
    protocol: int, order: str, key: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    rows, labels = fake_rows(4, 0), np.array([99, 0, 5, 5])
    source = replace(
        CIFAR100,
        train={"train": 4},
        test={"test": 4},
        digests=dict.fromkeys(("train", "test"), cifar.digest(rows, labels.tolist())),
    )
    monkeypatch.setitem(registry._registry(), "cifar100", source)

    def dump(name: str, **content: object) -> None:
        keyed = {key(k): v for k, v in content.items()}  # type: ignore[operator]
        (folder / name).write_bytes(pickle.dumps(keyed, protocol=protocol))

    shuffled = [2, 0, 3, 1]
    dump("train", data=np.asarray(rows, order=order), fine_labels=labels.tolist(), coarse_labels=[0] * 4)
    dump("test", data=rows[shuffled], fine_labels=labels[shuffled])
    dump("meta", fine_label_names=[f"kind {i}" for i in range(100)])
    data = load("cifar100", tmp_path)
    assert torch.equal(data.train.images.view(4, -1), torch.from_numpy(rows))
    assert data.test.labels.tolist() == [5, 99, 5, 0]
    assert data.train.std == (68.2 / 255, 65.4 / 255, 70.4 / 255)


@given(order=st.permutations(range(6)), pixel=st.integers(0, 3071), image=st.integers(0, 5))
def test_the_digest_forgets_the_order_but_nothing_else(order: list[int], pixel: int, image: int) -> None:
    rows, labels = fake_rows(6, 1), [0, 1, 2, 3, 4, 5]
    expected = cifar.digest(rows, labels)
    assert cifar.digest(rows[order], [labels[i] for i in order]) == expected
    assert cifar.digest(rows, labels[::-1]) != expected
    rows[image, pixel] ^= 1
    assert cifar.digest(rows, labels) != expected


def test_changed_pixels_are_refused(fake10: Path) -> None:
    rows, labels = fake_rows(3, len("train") + 3), [3, 0, 7]
    rows[0, 0] ^= 1
    (fake10 / "cifar-10-batches-py" / "data_batch_1").write_bytes(python2_pickle(rows, labels))
    with pytest.raises(ValueError, match=r"train .*cifar-10-batches-py .*SHA-256"):
        load("cifar10", fake10)


dump = partial(pickle.dumps, protocol=4)


ROWS = fake_rows(3, 0)
DAMAGED = {
    "empty": (b"", "cannot be read"),
    "cut": (python2_pickle(ROWS, [1, 2, 3])[:5000], "cannot be read"),
    "noise": (b"not a pickle at all", "cannot be read"),
    "list": (dump([1, 2]), "holds a list, expected a dict"),
    "fewer": (python2_pickle(ROWS[:2], [1, 2]), r"uint8 \(3, 3072\), got uint8 \(2, 3072\)"),
    "wider": (python2_pickle(np.concatenate([ROWS, ROWS], 1), [1, 2, 3]), r"got uint8 \(3, 6144\)"),
    "floats": (dump({"data": ROWS.astype(np.float32), "labels": [1, 2, 3]}), "got float32"),
    "objects": (dump({"data": np.array([None, {}], dtype=object)}), "got object"),
    "no data": (dump({"labels": [1, 2, 3]}), "got None"),
    "no labels": (dump({"data": ROWS}), "3 integers below 10"),
    "label": (dump({"data": ROWS, "labels": [1, 2, 10]}), "3 integers below 10"),
    "labels": (dump({"data": ROWS, "labels": [1, 2]}), "3 integers below 10"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_batch_is_named(fake10: Path, how: str) -> None:
    content, message = DAMAGED[how]
    (fake10 / "cifar-10-batches-py" / "data_batch_1").write_bytes(content)
    with pytest.raises(ValueError, match=rf"data_batch_1 .*{message}"):
        load("cifar10", fake10)


def test_a_missing_batch_and_a_wrong_list_of_classes_are_named(fake10: Path) -> None:
    folder = fake10 / "cifar-10-batches-py"
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"one"]}))
    with pytest.raises(ValueError, match=r"batches\.meta should list 10 class names"):
        load("cifar10", fake10)
    (folder / "data_batch_2").unlink()
    with pytest.raises(FileNotFoundError, match="cifar-10-batches-py lacks data_batch_2"):
        load("cifar10", fake10, download=True)


class Hostile:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> object:
        return self.call


def mark(path: str) -> None:
    Path(path).touch()


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_runs_nothing(fake10: Path, tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "ran"
    batch = fake10 / "cifar-10-batches-py" / "data_batch_1"
    for call in (
        Hostile(os.system, f"touch {victim}"),
        Hostile(mark, str(victim)),
        Hostile(eval, f"open({str(victim)!r}, 'w')"),
        Hostile(getattr, "text", "join"),
    ):
        batch.write_bytes(pickle.dumps({"data": [call], "labels": []}, protocol=protocol))
        with pytest.raises(ValueError, match=r"data_batch_1 .* it asks for "):
            load("cifar10", fake10)
    assert not victim.exists()


def test_a_pickle_cannot_change_what_it_may_name(fake10: Path) -> None:
    batch = fake10 / "cifar-10-batches-py" / "data_batch_1"
    original = batch.read_bytes()
    for name in (b"numpy\ndtype", b"numpy\nndarray", b"numpy.core.multiarray\n_reconstruct"):
        batch.write_bytes(b"\x80\x02c" + name + b"\nN}X\x05\x00\x00\x00valueK\x01s\x86b.")
        with pytest.raises(ValueError, match="data_batch_1 cannot be read"):
            load("cifar10", fake10)
    batch.write_bytes(original)
    assert len(load("cifar10", fake10).train) == 12


def pack(root: Path, archive: Path) -> bytes:
    """Pack the fake folder as its authors would, with an unwanted and a malicious member, and remove it."""
    folder = root / "cifar-10-batches-py"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
        for name in ("../escaped", f"{folder.name}/readme.html"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    content = archive.read_bytes()
    registry._registry()["cifar10"] = replace(find("cifar10"), md5=hashlib.md5(content).hexdigest())
    return content


@pytest.fixture
def published(fake10: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty root and a network that serves the fake archive."""
    content = pack(fake10, fake10 / "archive")
    (fake10 / "archive").unlink()

    def serve(url: str, timeout: float) -> io.BytesIO:
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
        return io.BytesIO(content)

    monkeypatch.setattr(urllib.request, "urlopen", serve)
    return fake10 / "new" / "root"


def test_download_fetches_checks_and_unpacks_only_what_is_wanted(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"https://.*cifar-10-python\.tar\.gz"):
        load("cifar10", published)
    assert len(load("cifar10", published, download=True).train) == 12
    assert {path.name for path in published.iterdir()} == {"cifar-10-python.tar.gz", "cifar-10-batches-py"}
    assert not (published / "cifar-10-batches-py" / "readme.html").exists()
    assert not (published.parent / "escaped").exists()
    monkeypatch.setattr(urllib.request, "urlopen", None)
    assert len(load("cifar10", published, download=True).train) == 12


def test_a_wrong_archive_leaves_nothing_behind(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(b"a login page"))
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz has MD5"):
        load("cifar10", published, download=True)
    assert list(published.iterdir()) == []


def test_an_archive_put_there_by_hand_is_checked_and_used(fake10: Path) -> None:
    archive = fake10 / "cifar-10-python.tar.gz"
    content = pack(fake10, archive)
    archive.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"cifar-10-python\.tar\.gz has MD5"):
        load("cifar10", fake10)
    archive.write_bytes(content)
    assert len(load("cifar10", fake10).test) == 3


def test_an_archive_without_a_file_is_refused_whole(fake10: Path) -> None:
    (fake10 / "cifar-10-batches-py" / "test_batch").unlink()
    pack(fake10, fake10 / "cifar-10-python.tar.gz")
    with pytest.raises(ValueError, match="has no file cifar-10-batches-py/test_batch"):
        load("cifar10", fake10)
    assert [path.name for path in fake10.iterdir()] == ["cifar-10-python.tar.gz"]


def test_without_a_network_download_says_what_to_do(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str, timeout: float) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with pytest.raises(ConnectionError, match=r"https://.*cifar-10-python\.tar\.gz"):
        load("cifar10", published, download=True)
    assert list(published.iterdir()) == []
