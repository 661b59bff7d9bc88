"""Settings of the console: the options of `fairlead console`, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LISTEN_DEFAULT: Final = "127.0.0.1:9580"


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


def listen_address(listen: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. Raises `SettingsError`."""
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        message = f"--listen must be HOST:PORT with a port of at most 65535, not {listen!r}"
        raise SettingsError(message)
    return host.removeprefix("[").removesuffix("]"), int(port)
