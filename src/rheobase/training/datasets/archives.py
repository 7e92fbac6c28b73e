"""Download a published archive and unpack the required files, completely or not at all."""

import hashlib
import os
import ssl
import tarfile
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from shutil import copyfileobj
from urllib.error import URLError

_CHUNK = 1 << 20


def download(url: str, md5: str, archive: Path) -> None:
    """Download a file with a published MD5; it gets its name only after the check."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".download-") as scratch:
        part = Path(scratch) / archive.name
        try:
            with urllib.request.urlopen(url, timeout=60) as response, part.open("wb") as file:
                while chunk := response.read(_CHUNK):
                    file.write(chunk)
        except (URLError, HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
            raise ConnectionError(
                f"could not download {url} ({error}): download it on another machine, copy it to {archive} "
                "and try again"
            ) from error
        _check(part, md5, url)
        os.replace(part, archive)


def unpack(archive: Path, md5: str, folder: Path, files: tuple[str, ...]) -> None:
    """Check an archive and copy the named files from its folder of the same name to ``folder``.

    Nothing else is extracted.
    """
    _check(archive, md5, str(archive))
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpack-") as scratch:
        build = Path(scratch) / folder.name
        build.mkdir()
        with tarfile.open(archive) as tar:
            for name in files:
                try:
                    source = tar.extractfile(f"{folder.name}/{name}")
                except KeyError:
                    source = None
                if source is None:
                    raise ValueError(f"{archive} has no file {folder.name}/{name}")
                with source, (build / name).open("wb") as target:
                    copyfileobj(source, target, _CHUNK)
        try:
            build.rename(folder)
        except OSError:
            # Another process may have made the same folder in the meantime.
            if not folder.is_dir():
                raise


def _check(file: Path, md5: str, origin: str) -> None:
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "md5").hexdigest()
    if found != md5:
        raise ValueError(
            f"{origin} has MD5 {found}, expected {md5}: it is damaged or not the official file; "
            "remove it and download it again"
        )
