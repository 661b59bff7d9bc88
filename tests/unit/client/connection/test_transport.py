"""Calls over HTTP/2: answers, problems, retries, and addresses that are down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fairlead import Producer
from fairlead.connection.transport import Call, Transport
from fairlead.errors import (
    BugError,
    ClosedError,
    SettingError,
    ThrottledError,
    TopicNotFoundError,
    UnreachableError,
)
from fairlead.settings import ConnectionSettings
from fairlead_api.problems import SideEffect
from refusals import raises
from waiting import pause, pause_blocking

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

CALL = Call(method="GET", path="/v1/versions", subject="versions", timeout_seconds=1)


@pytest.fixture
async def transport(broker: ScriptedBroker) -> AsyncIterator[Transport]:
    """Yield a transport whose first address is down and whose second is the scripted broker."""
    settings = ConnectionSettings(
        bootstrap=("http://127.0.0.1:1", broker.url), retry_backoff_seconds=0.01, retry_timeout_seconds=5
    )
    async with Transport(settings) as transport:
        yield transport


async def good(_: Received) -> Reply:
    """Answer with a body."""
    return 200, {"etag": '"7"'}, b"fine"


async def test_an_answer_has_status_body_etag_and_broker(
    broker: ScriptedBroker, transport: Transport
) -> None:
    """An answer contains the status, the body, the ETag and the broker."""
    broker.script("/v1/versions", good)
    answer = await transport.send(CALL, broker.url)

    assert (answer.status, bytes(answer.body), answer.etag, answer.broker) == (
        200,
        b"fine",
        '"7"',
        broker.url,
    )
    assert broker.requests[0].headers["fairlead-forward"] == "never"


async def test_a_problem_becomes_its_error(broker: ScriptedBroker, transport: Transport) -> None:
    """A problem is raised as its error, with the subject of the call and the broker that refused it."""
    broker.refuse("/v1/versions", "topic_not_found", topic="flights")
    with pytest.raises(TopicNotFoundError) as raised:
        await transport.send(CALL, broker.url)

    assert (raised.value.subject, raised.value.broker) == ("versions", broker.url)
    assert raised.value.data == {"topic": "flights"}


async def test_an_answer_of_a_proxy_is_an_error_too(broker: ScriptedBroker, transport: Transport) -> None:
    """An answer without a problem document, as from a proxy, is raised as the error for its status."""

    async def page(_: Received) -> Reply:
        """Answer as a proxy."""
        return 502, {"content-type": "text/html"}, b"<h1>Bad Gateway</h1>"

    broker.script("/v1/versions", page)
    with raises(BugError, 502):
        await transport.send(CALL, broker.url)


async def test_retry_after_is_read_from_the_header(broker: ScriptedBroker, transport: Transport) -> None:
    """Retry-After is read from the header if the problem document does not contain the delay."""

    async def throttled(_: Received) -> Reply:
        """Refuse the request with a Retry-After header."""
        return 429, {"retry-after": "7"}, b'{"code": "throttled", "status": 429, "detail": "slow down"}'

    broker.script("/v1/versions", throttled)
    with pytest.raises(ThrottledError) as raised:
        await transport.send(CALL, broker.url)

    assert raised.value.retry_after_seconds == 7


async def test_calls_pass_over_addresses_that_are_down(broker: ScriptedBroker, transport: Transport) -> None:
    """A call skips addresses that are down, and the next call starts with the address that answered."""
    broker.script("/v1/versions", good, good)
    await transport.call(CALL)
    answer = await transport.call(CALL)

    assert answer.broker == broker.url


async def test_calls_are_retried_by_kind(broker: ScriptedBroker, transport: Transport) -> None:
    """A call is retried for the kinds retry and refresh, and fails immediately for the kind fix."""
    broker.refuse("/v1/versions", "shutting_down", "no_leader", "overloaded")
    broker.script("/v1/versions", good)
    assert (await transport.call(CALL)).status == 200
    assert len(broker.requests) == 4
    broker.refuse("/v1/versions", "topic_not_found")
    with pytest.raises(TopicNotFoundError):
        await transport.call(CALL)

    assert len(broker.requests) == 5


async def test_a_broker_that_goes_on_refusing_is_left(broker: ScriptedBroker, transport: Transport) -> None:
    """After a refusal, the call is sent to another broker, which later calls try first."""
    async with type(broker)() as other:
        other.script("/v1/versions", good, good)
        broker.refuse("/v1/versions", "coordination_unavailable")
        transport.known_brokers = (other.url,)
        answer = await transport.call(CALL)
        again = await transport.call(CALL)

    assert (answer.broker, again.broker) == (other.url, other.url)
    assert len(broker.requests) == 1


async def test_known_brokers_are_asked_when_the_bootstrap_is_down(broker: ScriptedBroker) -> None:
    """Brokers from the metadata are tried when all bootstrap addresses are down."""
    broker.script("/v1/versions", good)
    async with Transport(ConnectionSettings(bootstrap=("http://127.0.0.1:1",))) as transport:
        transport.known_brokers = (broker.url,)

        assert (await transport.call(CALL)).broker == broker.url


async def test_a_refused_connection_has_no_side_effect() -> None:
    """A refused connection has no side effect, because no request was sent."""
    settings = ConnectionSettings(bootstrap=("http://127.0.0.1:1",), retry_timeout_seconds=0.05)
    async with Transport(settings) as transport:
        with pytest.raises(UnreachableError) as raised:
            await transport.call(CALL)

    assert raised.value.side_effect is SideEffect.NONE


async def test_a_connection_that_breaks_under_a_request_leaves_doubt(broker: ScriptedBroker) -> None:
    """A connection that breaks after the request was received leaves the side effect unknown."""
    relay = await asyncio.start_server(_relay_until_answered(broker), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    broker.script("/v1/versions", good)
    async with relay, Transport(ConnectionSettings(bootstrap=(url,))) as transport:
        with pytest.raises(UnreachableError) as raised:
            await transport.send(CALL, url)

    assert raised.value.side_effect is SideEffect.MAYBE
    assert len(broker.requests) == 1


def _relay_until_answered(
    broker: ScriptedBroker,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Return a relay that aborts the client's connection when the broker answers the request."""
    port = int(broker.url.rpartition(":")[2])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)

        async def back() -> None:
            while chunk := await far_reader.read(65_536):
                if broker.requests:
                    writer.transport.abort()
                    return
                writer.write(chunk)

        async with asyncio.TaskGroup() as group:
            answering = group.create_task(back())
            while chunk := await reader.read(65_536):
                far_writer.write(chunk)
            answering.cancel()
        far_writer.transport.abort()

    return serve


async def test_a_silent_broker_may_have_acted(broker: ScriptedBroker) -> None:
    """A broker that does not answer may have executed the request."""

    async def silent(_: Received) -> Reply | None:
        """Never answer."""
        await asyncio.get_running_loop().create_future()
        return None

    broker.script("/v1/versions", silent)
    async with Transport(ConnectionSettings(bootstrap=(broker.url,))) as transport:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fairlead.connection.transport.ANSWER_MARGIN_SECONDS", -0.8)
            with raises(UnreachableError, "0.2") as raised:
                await transport.send(CALL, broker.url)

    assert raised.value.side_effect is SideEffect.MAYBE


async def test_calls_pass_over_an_address_that_does_not_answer(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is sent to the next address soon, and a write is sent only to an address that answered a read."""
    monkeypatch.setattr("fairlead.connection.transport.READ_SECONDS", 0.05)

    async def silent(_: Received) -> Reply | None:
        """Never answer."""
        await asyncio.get_running_loop().create_future()
        return None

    async with type(broker)() as other:
        broker.script("/v1/versions", silent)
        other.script("/v1/versions", good)
        other.script("/v1/topics", good)
        settings = ConnectionSettings(bootstrap=(broker.url, other.url))
        async with Transport(settings) as transport:
            answer = await transport.call(Call(method="POST", path="/v1/topics", subject="create topic"))

    assert answer.broker == other.url
    assert [each.path for each in broker.requests] == ["/v1/versions"]


async def test_a_slow_broker_keeps_a_read_that_was_sent_to_a_silent_one(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read is answered by a slow broker, even if the next broker that was asked in the meantime never answers."""
    monkeypatch.setattr("fairlead.connection.transport.READ_SECONDS", 0.05)
    was_asked = asyncio.Event()

    async def slow(received: Received) -> Reply | None:
        """Answer after the other broker was asked."""
        await was_asked.wait()
        return await good(received)

    async def silent(_: Received) -> Reply | None:
        """Never answer."""
        was_asked.set()
        await asyncio.get_running_loop().create_future()
        return None

    async with type(broker)() as other:
        broker.script("/v1/versions", slow)
        other.script("/v1/versions", silent)
        async with Transport(ConnectionSettings(bootstrap=(broker.url, other.url))) as transport:
            answer = await asyncio.wait_for(transport.call(CALL), 30)

    assert answer.broker == broker.url


async def test_a_closed_transport_says_so(broker: ScriptedBroker) -> None:
    """A transport that is not open, or was closed, raises ClosedError."""
    transport = Transport(ConnectionSettings(bootstrap=(broker.url,)))
    with pytest.raises(ClosedError):
        await transport.send(CALL, broker.url)
    async with transport:
        pass
    with pytest.raises(ClosedError):
        await transport.send(CALL, broker.url)


async def test_what_is_open_is_not_opened_again(broker: ScriptedBroker, transport: Transport) -> None:
    """An open transport or producer refuses to be opened again, because its first connections would leak."""
    with raises(SettingError, name="start"):
        await transport.__aenter__()
    async with Producer(broker.url) as producer:
        with raises(SettingError, name="start"):
            await producer.start()


async def test_a_cancellation_after_the_end_of_a_call_is_kept(transport: Transport) -> None:
    """A task that is cancelled between the end of its call and its next step raises CancelledError."""

    async def called() -> None:
        """Make a call that fails at once."""
        with suppress(UnreachableError):
            await transport.send(CALL, "http://127.0.0.1:1")

    lost = 0
    for _ in range(10):
        task = asyncio.create_task(called())
        await pause(0)
        # The call ends in a thread while the event loop is blocked.
        pause_blocking(0.02)
        # A task that has already ended cannot be cancelled.
        asked = task.cancel()
        await asyncio.wait({task})
        lost += asked and not task.cancelled()

    assert lost == 0
