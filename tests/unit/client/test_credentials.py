"""Where a client gets its token, when the token is renewed, and where the token must not appear."""

from __future__ import annotations

import asyncio
import base64
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlead import Admin, clock, credentials
from fairlead.connection.transport import Call, Transport
from fairlead.credentials import TOKEN_SECONDS_MAX, TOKEN_VARIABLES, CallerToken, Credentials
from fairlead.errors import SettingError, UnauthenticatedError
from fairlead.settings import ConnectionSettings, connection_of

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

CALL = Call(method="GET", path="/v1/versions", subject="versions", timeout_seconds=1)
HERE = "http://127.0.0.1:9520"


@pytest.fixture(autouse=True)
def no_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the token variables and the mounted token of the machine that runs the tests."""
    for name in TOKEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(credentials, "MOUNTED_TOKEN", tmp_path / "mounted")


def chosen(bootstrap: str = HERE, **arguments: Any) -> Credentials:
    """Return the source that a client with these arguments uses."""
    return connection_of(bootstrap, connect="1s", request="1s", retry="1s", **arguments).credentials


async def test_arguments_precede_the_environment_and_the_mounted_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sources of a token are an argument, a variable and the mounted file, in this order (rule C1)."""
    (tmp_path / "mounted").write_text("mounted\n")
    told = [str(chosen())]
    monkeypatch.setenv("FAIRLEAD_TOKEN_FILE", "/variable")
    told += [str(chosen()), str(chosen(token_file="/argument")), str(chosen(token="text"))]

    assert told == [
        f"token_file {tmp_path}/mounted",
        "token_file /variable",
        "token_file /argument",
        "token",
    ]


@pytest.mark.parametrize(
    ("bootstrap", "variables", "arguments", "named"),
    [
        (HERE, {}, {"token": "a", "token_file": "b"}, "token_file"),
        (HERE, {}, {"token": "a", "token_provider": str}, "token_provider"),
        (HERE, {"FAIRLEAD_TOKEN": "a", "FAIRLEAD_TOKEN_COMMAND": "b"}, {}, "FAIRLEAD_TOKEN_COMMAND"),
        (HERE, {}, {"token": "se cret"}, "token"),
        (HERE, {}, {"token": ""}, "token"),
        (HERE, {}, {"token_file": 7}, "token_file"),
        (HERE, {}, {"token_provider": "secret"}, "token_provider"),
        (HERE, {"FAIRLEAD_TOKEN_COMMAND": "vault 'read"}, {}, "token_command"),
        (HERE, {"FAIRLEAD_ALLOW_INSECURE_TOKEN": "perhaps"}, {}, "allow_insecure_token"),
        ("http://broker.example:9520", {}, {"token": "secret"}, "bootstrap"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused(
    bootstrap: str,
    variables: dict[str, str],
    arguments: dict[str, Any],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sources, an invalid token, or a token sent elsewhere without TLS are refused; the error names the setting."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError) as refused:
        Admin(bootstrap, **arguments)

    assert refused.value.name == named
    assert "secret" not in str(refused.value) or named == "token_provider"


@pytest.mark.parametrize(
    "bootstrap", ["https://broker.example:9520", "http://localhost:9520", "http://[::1]:9520"]
)
def test_a_token_is_sent_by_tls_and_on_this_machine(bootstrap: str) -> None:
    """A token may be sent over https, to this machine, or to any address if a setting allows it."""
    chosen(bootstrap, token="secret")
    chosen("http://broker.example:9520", token="secret", allow_insecure_token=True)


def test_no_representation_contains_the_token() -> None:
    """The settings of a client do not show its token."""
    settings = ConnectionSettings(credentials=Credentials("secret"))

    assert "secret" not in f"{settings!r} {settings.credentials} {CallerToken(settings.credentials)!r}"


def signed(seconds: float) -> str:
    """Return a text in the form of a signed token that expires after some seconds."""
    claims = msgspec.json.encode({"exp": clock.now_us() / 1e6 + seconds})
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"


class Source:
    """A token that a client can read from a file, from a command, and from two kinds of functions."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "token"
        self.command = f"{sys.executable} -S -c {shlex.quote(f'print(open({str(self.file)!r}).read())')}"
        self.asked = 0

    def give(self, text: str) -> None:
        """Replace the token in the file."""
        self.file.write_text(text)

    def provide(self) -> str:
        """Return the token, as a token provider of a program does."""
        self.asked += 1
        return self.file.read_text()

    async def provide_later(self) -> str:
        """Return the token, as an asynchronous token provider does."""
        return await asyncio.to_thread(self.provide)


Ways = dict[str, Callable[[Source], Credentials]]
WAYS: Ways = {
    "file": lambda source: Credentials(token_file=source.file),
    "command": lambda source: Credentials(token_command=source.command),
    "function": lambda source: Credentials(token_provider=source.provide),
    "coroutine function": lambda source: Credentials(token_provider=source.provide_later),
    "function of a coroutine": lambda source: Credentials(token_provider=partial(source.provide_later)),
}


async def admit(received: Received, *tokens: str) -> Reply | None:
    """Answer a request that has one of the given tokens, and refuse any other request."""
    if received.headers.get("authorization") in [f"Bearer {token}" for token in tokens]:
        return 200, {}, b"fine"
    body = b'{"code": "unauthenticated", "status": 401, "detail": "refused"}'
    return 401, {"content-type": "application/problem+json"}, body


@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_token_is_asked_for_once_more(
    way: str, broker: ScriptedBroker, tmp_path: Path
) -> None:
    """After a refusal, the token is read from its source again, and the request is sent once more with a new token."""
    source = Source(tmp_path)
    source.give("first")
    async with Transport(
        ConnectionSettings(bootstrap=(broker.url,), credentials=WAYS[way](source))
    ) as transport:
        broker.script("/v1/versions", *[lambda received: admit(received, "first", "second")])
        await transport.call(CALL)
        source.give("second")
        broker.script("/v1/versions", *[lambda received: admit(received, "second")] * 2)
        answer = await transport.call(CALL)
        broker.script("/v1/versions", *[admit] * 2)
        with pytest.raises(UnauthenticatedError) as refused:
            await transport.call(CALL)

    assert answer.status == 200
    assert len(broker.requests) == 4  # no repeated request: the source still has the refused token
    assert str(transport.settings.credentials) in str(refused.value)
    assert "second" not in str(refused.value)


async def test_many_refusals_ask_once(broker: ScriptedBroker, tmp_path: Path) -> None:
    """If several requests are refused with the same token, the token is read from its source only once."""
    source = Source(tmp_path)
    source.give("first")
    way = Credentials(token_provider=source.provide_later)
    async with Transport(ConnectionSettings(bootstrap=(broker.url,), credentials=way)) as transport:
        broker.script("/v1/versions", *[lambda received: admit(received, "second")] * 32)
        with pytest.raises(UnauthenticatedError):
            await transport.call(CALL)
        source.give("second")
        await asyncio.gather(*[transport.call(CALL) for _ in range(8)])

    assert source.asked == 3


@pytest.mark.parametrize(
    ("way", "text", "seconds", "is_asked"),
    [
        ("function", "first", TOKEN_SECONDS_MAX - 1, False),
        ("function", "first", TOKEN_SECONDS_MAX, True),
        ("file", "first", TOKEN_SECONDS_MAX, True),
        ("command", "first", 1e6, False),
        ("command", "a.b.c", 1e6, False),
        ("command", "signed for an hour", 3500, False),
        ("command", "signed for an hour", 3580, True),
    ],
)
async def test_an_old_token_is_asked_for_again(
    way: str, text: str, seconds: float, is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a function are read again after 30 s, and a command runs again only when its signed token expires."""
    source, monotonic = Source(tmp_path), clock.monotonic
    text = signed(3600) if text == "signed for an hour" else text
    source.give(text)
    token = CallerToken(WAYS[way](source))
    assert await token.text_for(HERE) == text
    source.give("second")
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + seconds)

    assert await token.text_for(HERE) == ("second" if is_asked else text)


@pytest.mark.parametrize("way", WAYS)
async def test_a_source_that_fails_later_changes_nothing(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A source that has never returned a token raises an error.

    If a source of tokens fails after its first token, the client keeps using the previous token.
    """
    source, monotonic = Source(tmp_path), clock.monotonic
    token = CallerToken(WAYS[way](source))
    with pytest.raises(SettingError):
        await token.text_for(HERE)
    source.give("first")
    assert await token.text_for(HERE) == "first"
    source.give("no token")
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + 1e9)
    assert await token.text_for(HERE) == "first"
    assert not await token.replaces("first")

    assert "no token" not in caplog.text.replace("contains no token", "").replace("printed no token", "")


async def test_http2_never_indexes_the_token() -> None:
    """The header with the token is encoded as never indexed, so no header table of HTTP/2 stores the token."""
    received = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\0\x04\0\0\0\0\0")  # an empty SETTINGS frame
        await reader.readexactly(24)
        while True:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3]))
            if head[3] == 1:
                received.set_result(payload)
                writer.close()
                return

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = ConnectionSettings(
        bootstrap=(url,), credentials=Credentials("secret"), retry_timeout_seconds=0.01
    )
    async with server, Transport(settings) as transport:
        sending = asyncio.ensure_future(transport.call(CALL))
        headers = await received
        sending.cancel()

    # RFC 7541, 6.2.3: the prefix 0001, then the index 23 of `authorization` in the static table.
    assert b"\x1f\x08" in headers
