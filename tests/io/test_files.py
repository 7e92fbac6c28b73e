"""A file is replaced whole or not at all."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rheobase.io import replace_file, replacing, require_writable


def test_text_is_utf8_and_the_folder_is_made(tmp_path: Path) -> None:
    replace_file(tmp_path / "new" / "file", "θ")
    assert (tmp_path / "new" / "file").read_bytes() == "θ".encode()
    replace_file(tmp_path / "new" / "file", b"bytes")
    assert [path.read_bytes() for path in (tmp_path / "new").iterdir()] == [b"bytes"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match=r"file \(no space\)") as caught:
        replace_file(path, "new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_any_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def stop() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (link := tmp_path / "link").symlink_to("disk/file")
    for text in ("new", "newer"):
        replace_file(link, text)
        assert link.is_symlink()
        assert [path.read_text() for path in (tmp_path / "disk").iterdir()] == [text]
    assert len(list(tmp_path.iterdir())) == 2


def test_others_may_read_it_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replace_file(tmp_path / "open", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o644


def test_processes_that_write_at_once_do_not_hinder_each_other(tmp_path: Path) -> None:
    script = (
        "import sys; from rheobase.io import replace_file, require_writable\n"
        "for _ in range(25): require_writable(sys.argv[1] + '/one', 1); "
        "replace_file(sys.argv[1] + '/one', 'x' * 100_000)"
    )
    both = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


class TestRequireWritable:
    def test_enough_space_leaves_no_trace(self, tmp_path: Path) -> None:
        require_writable(tmp_path / "new" / "last", 1000)
        assert not list((tmp_path / "new").iterdir())

    def test_too_little_space(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_900_000_000))
        (tmp_path / "last").write_bytes(bytes(1000))
        require_writable(tmp_path / "last", 950_000_500)
        with pytest.raises(OSError, match="1,900 MB free, 2,000 MB"):
            require_writable(tmp_path / "last", 1_000_000_000)

    def test_it_is_the_target_of_a_link_that_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "file").touch()
        (good := tmp_path / "good").symlink_to("disk/new")
        (bad := tmp_path / "bad").symlink_to("file/new")
        require_writable(good, 1)
        with pytest.raises(OSError, match=r"cannot be written to .*file "):
            require_writable(bad, 1)

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError, match="safetensors"):
            require_writable(tmp_path, 1)


@pytest.mark.skipif(os.name != "posix", reason="named pipes are files of POSIX")
def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"pipe \(it is a device or a pipe\)"):
        replace_file(tmp_path / "pipe", "new")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 1
