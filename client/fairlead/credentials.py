"""Token of a client: from the environment, sent to brokers by https or on this machine only (rules C1 to C3).

`connection` asks for the header of each request. A file is read again when it was read 30 seconds ago, and after a
refusal, so that a token is rotated without a restart. A token appears in no error, log or representation.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fairlead import clock
from fairlead.errors import SettingError

TOKEN: Final = "FAIRLEAD_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE: Final = "FAIRLEAD_TOKEN_FILE"  # noqa: S105 - the name of a variable
ALLOW_INSECURE: Final = "FAIRLEAD_ALLOW_INSECURE_TOKEN"
FILE_SECONDS_MAX: Final = 30.0
"""Seconds after which a token file is read again."""


class TokenSource:
    """Source of the token that a client sends."""

    __slots__ = ("_allow_insecure", "_file", "_read_at", "_token")

    def __init__(self, token: str | None, file: Path | None, *, allow_insecure: bool) -> None:
        """Use a token, or the token in a file; without both, no token is sent.

        Raises `SettingError` if both are given. `allow_insecure`: send the token to other machines without TLS.
        """
        if token is not None and file is not None:
            raise SettingError(TOKEN_FILE, str(file), f"at most one of {TOKEN} and {TOKEN_FILE}")
        self._token = token
        self._file = file
        self._allow_insecure = allow_insecure
        self._read_at: float | None = None

    @classmethod
    def of_environment(cls) -> TokenSource:
        """Return the source that the environment variables name."""
        file = os.environ.get(TOKEN_FILE)
        return cls(
            os.environ.get(TOKEN) or None,
            Path(file) if file else None,
            allow_insecure=os.environ.get(ALLOW_INSECURE, "").lower() in ("1", "true"),
        )

    def header_for(self, broker: str) -> dict[str, str]:
        """Return the headers that name the caller to a broker. Raises `SettingError` for an insecure address."""
        token = self._current()
        if token is None:
            return {}
        if not self._allow_insecure and not _is_safe(broker):
            allowed = f"an https:// address, an address of this machine, or {ALLOW_INSECURE}=true"
            raise SettingError("bootstrap", broker, f"{allowed}, because requests contain a token")
        return {"authorization": f"Bearer {token}"}

    def renew(self) -> bool:
        """Read the file again after a refusal; return whether it contains another token."""
        if self._file is None:
            return False
        before, self._read_at = self._token, None
        return self._current() != before

    def _current(self) -> str | None:
        if self._file is None:
            return self._token
        now = clock.monotonic()
        if self._read_at is None or now - self._read_at > FILE_SECONDS_MAX:
            try:
                self._token = self._file.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingError(TOKEN_FILE, str(self._file), "a readable file with a token") from error
            self._read_at = now
        return self._token


def _is_safe(broker: str) -> bool:
    address = urlsplit(broker)
    if address.scheme == "https" or address.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return False
