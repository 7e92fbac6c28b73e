"""Atomic file replacement: a reader, or a crash, finds the old file or the new one, never a part."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: Path | str, content: str | bytes) -> None:
    """Write a file in one step; of two processes that write it at once, the last one wins.

    Args:
        path: The file; its folder is made if needed.
        content: The new content, text as UTF-8.

    Raises:
        OSError: The file cannot be written.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Give a temporary path to write to, and move it to the file's path when the block ends without error.

    A symbolic link is followed: what it points to is replaced.

    Raises:
        OSError: The file cannot be written; an existing one was not changed.
    """
    path = Path(path)
    target = _follow(path)
    part = _name_part(target)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise OSError(errno.EINVAL, "it is a device or a pipe")  # which os.replace would remove
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, target)
        _sync_folder(target.parent)
    except OSError as error:
        reason = f"cannot write {path} ({error.strerror or error}); an existing file was not changed"
        raise OSError(error.errno, reason) from error  # the number decides the class
    finally:
        with suppress(OSError):
            part.unlink()


def _follow(path: Path) -> Path:
    """The file that is written: what a symbolic link points to, so that the link itself stays."""
    return path.resolve() if path.is_symlink() else path


def _name_part(path: Path) -> Path:
    """A temporary name beside a file, which no other process has: several hosts may share a folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def require_writable(path: Path | str, size: int) -> None:
    """Find out before the work whether a file can be written at its end, and later replaced.

    Args:
        path: The file, or a symbolic link to it; its folder is made if needed.
        size: Bytes of the file. Twice as much must be free: the old file stays until the new one is complete.

    Raises:
        OSError: The folder cannot be made or written to, or has too little space.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file in it, such as {path / 'last.safetensors'}")
    target = _follow(path)
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = _name_part(target)
        trial.touch()
        trial.unlink()
    except OSError as error:
        reason = f"files cannot be written to {folder} ({error.strerror}); choose another folder"
        raise OSError(error.errno, reason) from error
    needed = 2 * size - (target.stat().st_size if target.exists() else 0)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(
            errno.ENOSPC,
            f"{folder} has {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB are needed; "
            "free some space or choose another folder",
        )


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
