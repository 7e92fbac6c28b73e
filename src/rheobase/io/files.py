"""Files that appear whole or not at all."""

import errno
import os
from pathlib import Path


def replace_file(path: Path | str, content: str | bytes, *, exclusive: bool = False) -> None:
    """Write a file so that a reader, or a crash, finds the old one or the new one and never a part.

    Args:
        path: The file; its folder is made if need be. Where it is a link, what it leads to is replaced; a
            pipe or a device, such as /dev/stdout, is written to.
        content: What to write, text as UTF-8.
        exclusive: Whether two processes that write it at a time are an error; else the last one wins.

    Raises:
        OSError: It cannot be written, of the kind that says why.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_stream(path):
        Path(path).write_bytes(data)
        return
    place = follow(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(place, exclusive=exclusive)
    try:
        part.write_bytes(data)
        put_in_place(part, place)
    except FileNotFoundError as error:
        raise OSError(
            errno.EBUSY,
            f"{part} was taken away while it was written; if another process is writing {path} too, stop one "
            "of them or give each its own file",
        ) from error
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(  # of the same kind, as its number says
            error.errno,
            f"{path} cannot be written ({error.strerror or error}); one that was there before still is",
        ) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def is_stream(path: Path | str) -> bool:
    """Whether it is a pipe or a device, which has no content to keep and must not be replaced."""
    return Path(path).is_fifo() or Path(path).is_char_device()


def follow(path: Path | str) -> Path:
    """Where a file really lies, or will, behind any links."""
    return Path(os.path.realpath(path))


def part_of(path: Path, *, exclusive: bool = False) -> Path:
    """Where a file is written before it gets its name.

    With one name for all processes what a killed one leaves behind is overwritten, and not added to.
    """
    return path.with_name(f".{path.name}.part" if exclusive else f".{path.name}.{os.getpid()}.part")


def put_in_place(part: Path, path: Path) -> None:
    """Give a whole file another's name in one step; not even a power cut leaves less than one of both."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and its entry is synced with the file
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
