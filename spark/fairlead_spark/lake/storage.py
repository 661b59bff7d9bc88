"""Access to the files of a table in a local folder, or in an object store that deltalake supports.

The same options apply to the log, which deltalake writes, and to the files, which are written through deltalake's file
system. In a local folder, Arrow writes the files, twice as fast as deltalake's file system.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs
from deltalake.exceptions import DeltaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

logger = logging.getLogger(__name__)

STORE_ERRORS: Final = (OSError, pa.ArrowException, DeltaError)
"""Errors that are raised by the client of a store if the store refuses a call or does not answer."""

# A Spark process reuses its clients for later batches. The key includes the process id, since clients do not survive a
# fork.
_file_systems: dict[tuple[int, str, tuple[tuple[str, str], ...]], pyarrow.fs.FileSystem] = {}


def local_folder(uri: str) -> Path | None:
    """Return the local folder of `uri`; None for an object store."""
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


def file_system(uri: str, options: Mapping[str, str]) -> pyarrow.fs.FileSystem:
    """Return the file system whose root is the table; a process creates this file system only once.

    Raises the error of the store's client for invalid options.
    """
    key = (os.getpid(), uri, tuple(sorted(options.items())))
    if key not in _file_systems:
        _file_systems[key] = connected(uri, options)
    return _file_systems[key]


def connected(uri: str, options: Mapping[str, str]) -> pyarrow.fs.FileSystem:
    """Create a file system whose root is the table."""
    folder = local_folder(uri)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return pyarrow.fs.SubTreeFileSystem(str(folder), pyarrow.fs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(uri, dict(options)))


def delete(files: pyarrow.fs.FileSystem, paths: Iterable[str]) -> list[str]:
    """Delete files; return the files that the store did not delete. A missing file is not an error.

    The files must not be part of any table, so a refusal by the store is only logged.
    """
    left, refusal = [], None
    for path in paths:
        try:
            files.delete_file(path)
        except FileNotFoundError:
            continue
        except STORE_ERRORS as error:
            left.append(path)
            refusal = error
    if left:
        logger.warning("%d unused files could not be deleted: %s: %s", len(left), refusal, left)
    return left


def names_in(files: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    """Return the paths of the files that are directly in a folder of the table; empty if the folder does not exist."""
    selector = pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=False)
    return [found.path for found in files.get_file_info(selector) if found.type == pyarrow.fs.FileType.File]
