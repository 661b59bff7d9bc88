"""The handling of requests over real sockets, by endpoints that fail in different ways."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from pyreqwest.client import Client
from pyreqwest.exceptions import BodyDecodeError

from fairlead_api.problems import ProblemError
from fairlead_api.routes import route
from fairlead_broker.clock import SystemClock
from fairlead_broker.server.http.application import Application
from fairlead_broker.server.http.body import ClientGone
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.problem_handler import FailureLog
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.telemetry import Telemetry


class KeptLog:
    """A log that records its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def bind(self, **facts: object) -> "KeptLog":
        """Return this log, without the bound facts."""
        return self

    def info(self, event: str, **facts: object) -> None:
        """Record an event."""
        self.events.append((event, facts))

    error = warning = debug = exception = info


class Served:
    """An application with one endpoint, its log and its metrics."""

    def __init__(
        self, endpoint: Callable[[Call], Awaitable[None]], name: str, *, access_log: bool = False
    ) -> None:
        self.log = KeptLog()
        self.telemetry = Telemetry(self.log)
        self.application = Application(
            [route(name)],
            {name: endpoint},
            SystemClock(),
            RequestMetrics(self.telemetry, access_log=access_log),
            FailureLog(self.log, "life"),
        )

    def count(self, name: str, status: str) -> float:
        """Return the number of requests to a route that were answered with a status."""
        labels = {"route": name, "status": status}
        return (
            self.telemetry.registry.get_sample_value("fairlead_request_duration_seconds_count", labels) or 0.0
        )


async def test_unforeseen_failure_has_a_failure_id_only(serve, http2: Client) -> None:
    """A failed endpoint answers 500 with a failure id, and the log records the cause with the same id."""

    async def broken(call: Call) -> None:
        raise ValueError("secret of the broker")

    served = Served(broken, "versions")
    bound = await serve(served.application)
    answer = await http2.get(f"http://{bound}/v1/versions").build().send()
    text = await answer.text()
    document = msgspec.json.decode(text)
    [(event, facts)] = served.log.events

    assert (answer.status, document["code"], document["side_effect"]) == (500, "internal", "none")
    assert "secret" not in text
    assert (event, facts["failure_id"]) == ("request failed unexpectedly", document["failure_id"])
    assert isinstance(facts["exc_info"], ValueError)
    assert served.count("versions", "500") == 1


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(asyncio.CancelledError, 500, "internal"), (ClientGone, 503, "shutting_down")],
)
async def test_every_call_is_answered_with_a_problem(
    serve, http2: Client, error: type[BaseException], status: int, code: str
) -> None:
    """A call whose work was cancelled, or whose client counts as gone but is there, is answered with a problem."""

    async def broken(call: Call) -> None:
        await call.body(10)
        raise error

    bound = await serve(Served(broken, "produce").application)
    answer = await http2.post(f"http://{bound}/v1/produce").body_bytes(b"x").build().send()
    document = await answer.json()

    assert (answer.status, document["code"], document["side_effect"]) == (status, code, "maybe")


async def test_failure_of_a_change_may_have_changed_something(serve, http2: Client) -> None:
    """A POST whose endpoint fails is answered with side effect `maybe`."""

    async def broken(call: Call) -> None:
        raise ValueError

    bound = await serve(Served(broken, "produce").application)
    answer = await http2.post(f"http://{bound}/v1/produce").body_bytes(b"x").build().send()

    assert (await answer.json())["side_effect"] == "maybe"


async def test_failure_in_the_middle_of_an_answer(serve, http2: Client) -> None:
    """A failure after the beginning of an answer resets the stream and is logged."""

    async def broken(call: Call) -> None:
        await call.answer_parts(200, [], [bytes(2 << 20), Exploding()])  # type: ignore[list-item]

    served = Served(broken, "versions")
    bound = await serve(served.application)
    with pytest.raises(BodyDecodeError):
        await (await http2.get(f"http://{bound}/v1/versions").build().send()).bytes()

    assert [event for event, _ in served.log.events] == ["request failed unexpectedly"]


class Exploding:
    """An answer body that has a length but fails when its bytes are read."""

    def __len__(self) -> int:
        return 10


async def test_refusal_reads_a_small_body_first(serve, http1: Client) -> None:
    """A refused request with a short body keeps its connection usable."""

    async def refuse(call: Call) -> None:
        raise ProblemError("overloaded", "no", retry_after_seconds=1)

    bound = await serve(Served(refuse, "produce").application)
    answers = [
        await http1.post(f"http://{bound}/v1/produce").body_bytes(bytes(50_000)).build().send() for _ in "ab"
    ]

    assert [answer.status for answer in answers] == [503, 503]
    assert {answer.headers.get("connection") for answer in answers} == {None}
    assert answers[0].headers["retry-after"] == "1"


@pytest.mark.parametrize("size", [1 << 20, 30 << 20])
async def test_refusal_of_a_large_body_arrives(serve, http1: Client, http2: Client, size: int) -> None:
    """A refusal reaches a client that is still sending its body, over HTTP/1.1 and HTTP/2."""

    async def refuse(call: Call) -> None:
        await call.body(1000)

    bound = await serve(Served(refuse, "produce").application)
    for client in (http1, http2):
        answer = await client.post(f"http://{bound}/v1/produce").body_bytes(bytes(size)).build().send()

        assert answer.status == 413


async def test_a_client_that_waits_for_100_continue_is_refused_unread(serve) -> None:
    """A client that waits for 100 Continue gets the refusal at once."""

    async def refuse(call: Call) -> None:
        raise ProblemError("overloaded", "no")

    bound = await serve(Served(refuse, "produce").application)
    reader, writer = await asyncio.open_connection(bound.host, bound.port)
    writer.write(
        b"POST /v1/produce HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n\r\n"
    )
    received = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()

    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"connection: close" in received


async def test_client_that_leaves_while_sending(serve) -> None:
    """A client that disconnects during its body is counted as gone, and nothing is logged."""
    ended = asyncio.Event()

    async def read(call: Call) -> None:
        try:
            await call.body(1000)
        finally:
            ended.set()

    served = Served(read, "produce")
    bound = await serve(served.application)
    _, writer = await asyncio.open_connection(bound.host, bound.port)
    writer.write(b"POST /v1/produce HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()
    writer.close()
    await asyncio.wait_for(ended.wait(), 5)
    await asyncio.wait_for(writer.wait_closed(), 5)

    assert served.count("produce", "499") == 1
    assert served.log.events == []


async def test_access_log(serve, http2: Client) -> None:
    """The access log has one line for each request, with its route, status, bytes and problem."""

    async def refuse(call: Call) -> None:
        await call.body(1000)
        raise ProblemError("overloaded", "no")

    served = Served(refuse, "produce", access_log=True)
    bound = await serve(served.application)
    await http2.post(f"http://{bound}/v1/produce?acks=1").body_bytes(b"12345").build().send()
    [(event, facts)] = served.log.events

    assert event == "request answered"
    assert (facts["route"], facts["status"], facts["code"]) == ("produce", 503, "overloaded")
    assert (facts["method"], facts["path"], facts["received_bytes"]) == ("POST", "/v1/produce", 5)
    assert facts["sent_bytes"] > 100


async def test_unknown_paths_are_counted_together(serve, http2: Client) -> None:
    """Unknown paths share one metric label."""

    async def never(call: Call) -> None:
        raise AssertionError

    served = Served(never, "versions")
    bound = await serve(served.application)
    for path in ("/a", "/b", "/v1/topics"):
        await http2.get(f"http://{bound}{path}").build().send()

    assert served.count("none", "404") == 3


@pytest.mark.parametrize(
    "path", ["a%0Ab/members/m", "%00/members/m", "g/members/a%C2%A0b", "g/members/%E2%80%8B"]
)
async def test_names_of_groups_and_members_follow_the_rule(serve, http2: Client, path: str) -> None:
    """The names of groups and members are checked before the endpoint runs."""

    async def reached(call: Call) -> None:
        raise AssertionError("the endpoint runs")

    bound = await serve(Served(reached, "leave_group").application)
    answer = await http2.delete(f"http://{bound}/v1/groups/{path}").build().send()

    assert (await answer.json())["code"] == "invalid_group_name"
