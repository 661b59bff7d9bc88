"""A client's token: its source, and its current text (rules C1 to C4).

`settings` chooses the source from arguments, the environment and the mounted file. The transport gets the token of each
request from this module. The source is read again when the token is old, and after a refusal, so that a token can be
rotated without a restart. A token never appears in an error, a log or a representation. The module must not
depend on connections.
"""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import logging
import os
import re
import shlex
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from fairlead import clock
from fairlead.errors import SettingError
from fairlead.tls_files import FilePath
from fairlead_api.base64url import decoded

TOKEN_VARIABLE: Final = "FAIRLEAD_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE: Final = "FAIRLEAD_TOKEN_FILE"  # noqa: S105 - the name of a variable
TOKEN_COMMAND_VARIABLE: Final = "FAIRLEAD_TOKEN_COMMAND"  # noqa: S105 - the name of a variable
TOKEN_VARIABLES: Final = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_COMMAND_VARIABLE)
ALLOW_INSECURE_VARIABLE: Final = "FAIRLEAD_ALLOW_INSECURE_TOKEN"
MOUNTED_TOKEN: Final = Path("/var/run/secrets/fairlead/token")
"""Path at which a token is mounted in a pod."""

TOKEN_SECONDS_MAX: Final = 30.0
"""Age in seconds at which a token file is read again, and a provider is called again."""
EXPIRY_SECONDS: Final = 30.0
"""Seconds before the expiry of a signed token at which the command that prints the token runs again."""
ASK_SECONDS_MAX: Final = 60.0
"""Maximum time in seconds that a provider or a command may take; a command may ask a person to log in."""
TOKEN_BYTES_MAX: Final = 8 * 1024
_TEXT: Final = re.compile(r"[\x21-\x7e]+")

TokenProvider: TypeAlias = "Callable[[], str | Awaitable[str]]"
"""Function, synchronous or asynchronous, that returns the text of a token."""

_log = logging.getLogger("fairlead.credentials")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Source of a client's token: at most one of the first four fields is set."""

    token: str | None = field(default=None, repr=False)
    """Text of the token."""
    token_file: Path | None = None
    """File that contains the token."""
    token_command: str | None = None
    """Command line, run without a shell, whose standard output is the token."""
    token_provider: TokenProvider | None = None
    """Function that returns the token."""
    allow_insecure: bool = False
    """Whether the token may be sent to other machines without TLS."""

    @classmethod
    def chosen(
        cls,
        token: str | None,
        token_file: FilePath | None,
        token_provider: TokenProvider | None,
        *,
        allow_insecure: bool,
    ) -> Credentials:
        """Return the source from the arguments, else from the environment, else the mounted file.

        Raises `SettingError` for more than one source, and for a text that is not a token.
        """
        if token is not None or token_file is not None or token_provider is not None:
            given = {"token": token, "token_file": token_file, "token_provider": token_provider}
            _check_one([name for name, value in given.items() if value is not None])
            return cls._of(token, token_file, None, token_provider, allow_insecure=allow_insecure)
        texts = {name: os.environ.get(name) or None for name in TOKEN_VARIABLES}
        _check_one([name for name, value in texts.items() if value is not None])
        text, file, command = texts.values()
        if not any(texts.values()) and MOUNTED_TOKEN.is_file():
            file = str(MOUNTED_TOKEN)
        return cls._of(text, file, command, None, allow_insecure=allow_insecure)

    @classmethod
    def _of(
        cls,
        token: str | None,
        file: FilePath | None,
        command: str | None,
        provider: TokenProvider | None,
        *,
        allow_insecure: bool,
    ) -> Credentials:
        if token is not None:
            _check_token("token", token)
        if file is not None and (not isinstance(file, str | os.PathLike) or not os.fspath(file)):
            raise SettingError("token_file", file, "the path of a file with a token")
        if provider is not None and not callable(provider):
            raise SettingError("token_provider", provider, "a function that returns a token")
        if command is not None and not words_of(command):
            raise SettingError("token_command", command, "a program and its arguments")
        return cls(token, None if file is None else Path(file), command, provider, allow_insecure)

    @property
    def is_given(self) -> bool:
        """Whether requests contain a token."""
        sources = (self.token, self.token_file, self.token_command, self.token_provider)
        return any(each is not None for each in sources)

    def __str__(self) -> str:
        """Return the name of the source, without the token."""
        if self.token_file is not None:
            return f"token_file {self.token_file}"
        if self.token_command is not None:
            return f"token_command {self.token_command}"
        return "token_provider" if self.token_provider is not None else "token"

    def check_safe(self, broker: str) -> None:
        """Raise `SettingError` if the token would be sent to another machine without TLS."""
        if self.is_given and not self.allow_insecure and not _is_safe(broker):
            allowed = "an https:// address, an address of this machine, or allow_insecure_token"
            raise SettingError("bootstrap", broker, f"{allowed}, because requests contain a token ({self})")


NO_TOKEN: Final = Credentials()
"""Credentials without a token: the principal of requests is `anonymous`."""


class CallerToken:
    """Current token for one client's requests, for use on one event loop."""

    __slots__ = ("_ask_at", "_asking", "_credentials", "_is_given", "_safe", "_text")

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._is_given = credentials.is_given
        self._text: str | None = credentials.token
        self._ask_at = float("inf") if credentials.token is not None else float("-inf")
        """Time after which the source is read again."""
        self._asking = asyncio.Lock()
        self._safe: set[str] = set()
        """Addresses to which the token may be sent."""

    async def text_for(self, broker: str) -> str | None:
        """Return the token for a request to a broker, or None without a source.

        Raises `SettingError` for an address to which no token may be sent, and if the source fails before it has
        returned a first token. If the source fails later, the previous token remains in use.
        """
        if not self._is_given:
            return None
        if broker not in self._safe:
            self._credentials.check_safe(broker)
            self._safe.add(broker)
        if clock.monotonic() >= self._ask_at:
            async with self._asking:
                if clock.monotonic() >= self._ask_at:
                    await self._ask()
        return self._text

    async def replaces(self, refused: str | None) -> bool:
        """Read the source again after a refusal; return whether the new token differs from the refused token.

        The source is read once for all requests that were refused with the same token.
        """
        if refused is None or self._credentials.token is not None:
            return False
        async with self._asking:
            if self._text == refused:
                await self._ask()
        return self._text != refused

    def advice(self) -> str | None:
        """Return the advice after a refusal of the token: the name of its source; None without a token."""
        return f"The token came from {self._credentials}." if self._is_given else None

    async def _ask(self) -> None:
        now = clock.monotonic()
        try:
            self._text = await _asked(self._credentials)
        except SettingError as error:
            if self._text is None:
                raise
            _log.warning("the previous token remains in use: %s", error)
            self._ask_at = now + TOKEN_SECONDS_MAX
        else:
            self._ask_at = now + _life_seconds(self._credentials, self._text)


async def _asked(credentials: Credentials) -> str:
    """Read the token from its source. Raises `SettingError` if the source fails."""
    if credentials.token_file is not None:
        return _read(credentials.token_file)
    if credentials.token_command is not None:
        return await asyncio.to_thread(_printed, credentials.token_command)
    assert credentials.token_provider is not None, "only a file, a command or a provider is read again"
    return await _provided(credentials.token_provider)


def _read(file: Path) -> str:
    allowed = "a readable file with a token"
    try:
        with file.open("rb") as opened:
            content = opened.read(TOKEN_BYTES_MAX + 2)
    except OSError as error:
        raise SettingError("token_file", str(file), f"{allowed} ({error.strerror})") from error
    text = content.decode("latin-1").strip()
    if not _is_token(text):
        raise SettingError("token_file", str(file), f"{allowed}; it contains no token")
    return text


def _printed(command: str) -> str:
    """Run a command and return the token that it prints. The command may write to the terminal through its stderr."""
    allowed = "a program that prints a token"
    try:
        done = subprocess.run(
            words_of(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=ASK_SECONDS_MAX,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"no token within {ASK_SECONDS_MAX:g} s"
        raise SettingError("token_command", command, f"{allowed} ({reason})") from error
    except subprocess.CalledProcessError as error:
        # The original error is not chained, because it contains the output of the program.
        reason = f"it ended with {error.returncode}"
        raise SettingError("token_command", command, f"{allowed} ({reason})") from None
    except OSError as error:
        raise SettingError("token_command", command, f"{allowed} ({error.strerror})") from error
    text = done.stdout.decode("latin-1").strip()
    if not _is_token(text):
        raise SettingError("token_command", command, f"{allowed}; it printed no token")
    return text


async def _provided(provider: TokenProvider) -> str:
    """Call a provider and return its token; a synchronous provider runs in a thread."""
    name = getattr(provider, "__qualname__", type(provider).__name__)
    try:
        async with asyncio.timeout(ASK_SECONDS_MAX):
            found: object
            if inspect.iscoroutinefunction(provider):
                found = await provider()
            else:
                found = await asyncio.to_thread(provider)
                if inspect.isawaitable(found):
                    found = await found
    except Exception as error:
        allowed = f"a function that returns a token (it raised {type(error).__name__})"
        raise SettingError("token_provider", name, allowed) from error
    if not isinstance(found, str) or not _is_token(found):
        raise SettingError("token_provider", name, "a function that returns a token, as text")
    return found


class _Claims(msgspec.Struct):
    """Expiry of a signed token, the only claim that the client reads."""

    exp: float


def _life_seconds(credentials: Credentials, text: str) -> float:
    """Return the seconds until the source is read again.

    A command is expensive, so it runs again only 30 s before a signed token expires, and after a refusal.
    """
    if credentials.token_command is None:
        return TOKEN_SECONDS_MAX
    parts = text.split(".")
    if len(parts) != 3:
        return float("inf")
    try:
        ends = msgspec.json.decode(decoded(parts[1]), type=_Claims).exp
    except (ValueError, msgspec.MsgspecError):
        return float("inf")
    return max(ends - clock.now_us() / 1e6 - EXPIRY_SECONDS, TOKEN_SECONDS_MAX)


def words_of(command: str) -> list[str]:
    """Return the program and the arguments of a command line; an empty list for text that no shell could parse."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _check_one(names: list[str]) -> None:
    if len(names) > 1:
        raise SettingError(names[1], "given", f"at most one of {' and '.join(names)}")


def _check_token(name: str, text: object) -> None:
    if not isinstance(text, str) or not _is_token(text):
        # The error omits the value, because it may be a mistyped token.
        raise SettingError(name, "***", f"the text of a token, at most {TOKEN_BYTES_MAX} bytes")


def _is_token(text: str) -> bool:
    return len(text) <= TOKEN_BYTES_MAX and _TEXT.fullmatch(text) is not None


def _is_safe(broker: str) -> bool:
    address = urlsplit(broker)
    if address.scheme == "https" or address.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.hostname or "").is_loopback
    except ValueError:
        return False
