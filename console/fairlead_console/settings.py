"""Settings of the console: the options of `fairlead console`, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

LISTEN_DEFAULT: Final = "127.0.0.1:9580"
SESSION_KEY_BYTES_MIN: Final = 32


class SettingsError(ValueError):
    """An option of the console is invalid; the message names the option and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Options of one console."""

    bootstrap: str
    """Addresses of one or more brokers, separated by commas."""
    host: str
    """Host name or IP address of the listener."""
    port: int
    """Port of the listener; 0 means a free port."""
    read_only: bool = False
    """Whether every change is refused."""
    hidden_records: Sequence[str] = ()
    """Patterns of topics whose records are hidden, such as `payroll.*`."""
    public_url: str | None = None
    """Address at which browsers reach the console through a proxy."""

    def hides_records(self, topic: str) -> bool:
        """Return whether the records of a topic are hidden."""
        return any(fnmatchcase(topic, pattern) for pattern in self.hidden_records)


def listen_address(listen: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. Raises `SettingsError`."""
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        message = f"--listen must be HOST:PORT with a port of at most 65535, not {listen!r}"
        raise SettingsError(message)
    return host.removeprefix("[").removesuffix("]"), int(port)


def checked_public_url(text: str | None) -> str | None:
    """Return the address without a trailing slash. Raises `SettingsError`."""
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        message = f"--public-url must be the scheme and host of the console, not {text!r}"
        raise SettingsError(message)
    return f"{parts.scheme}://{parts.netloc}"


def secret_of_file(option: str, path: Path | None, bytes_min: int) -> bytes | None:
    """Return a file's contents without surrounding white space; None if no file is given. Raises `SettingsError`."""
    if path is None:
        return None
    try:
        found = path.read_bytes().strip()
    except OSError as error:
        message = f"{option} {path} cannot be read: {error.strerror}"
        raise SettingsError(message) from error
    if len(found) < bytes_min:
        message = f"{option} {path} must have at least {bytes_min} bytes"
        raise SettingsError(message)
    return found
