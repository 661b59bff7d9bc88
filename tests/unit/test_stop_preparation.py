"""The stop hook of a broker's pod, with scripted answers from the broker.

Two stopping brokers at the same time are tested in tests/etcd/brokers/test_prepare_stop.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fairlead_broker.settings import Endpoint
from fairlead_broker.stop_preparation import UNANSWERED_SECONDS, Preparation, StopPreparation
from refusals import missing

Answer = tuple[int, bytes]
REFUSED = 409, json.dumps({"code": "restart_refused", "detail": "broker 2 has the permit"}).encode()
PERMITTED = 200, b'{"broker": 1, "seconds": 300}'


class Time:
    """A clock that advances only by waiting."""

    def __init__(self) -> None:
        """Start the clock at an arbitrary time."""
        self.seconds = 1000.0

    def now_us(self) -> int:
        """Return the clock's time in microseconds."""
        return int(self.seconds * 1e6)

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return self.seconds

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        self.seconds += seconds


@contextmanager
def listener(*answers: Answer) -> Iterator[tuple[Endpoint, list[str]]]:
    """Answer requests in turn, repeating the last answer, and yield the address and the requests."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(f"{self.path}{self.headers.get('Authorization', '')}")
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *about: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Endpoint("0.0.0.0", server.server_port), asked
        finally:
            server.shutdown()
            thread.join()


def prepare(
    listen: Endpoint, seconds: float = 90.0, token_file: Path | None = None
) -> tuple[Preparation, list[str], float]:
    """Run the hook of broker 1, and return its outcome, its log messages and the seconds that it waited."""
    time, told = Time(), list[str]()
    begun = time.seconds
    hook = StopPreparation(1, listen, time, time.wait, told.append, token_file=token_file)  # type: ignore[arg-type]
    outcome = hook.run(seconds)
    return outcome, told, time.seconds - begun


def test_each_request_has_the_token_of_the_pod(tmp_path: Path) -> None:
    """The hook sends the content of the token file, and no token while the file is missing."""
    file = tmp_path / "token"
    with listener(PERMITTED) as (listen, asked):
        prepare(listen, token_file=file)
        file.write_text("a.b.c\n")
        prepare(listen, token_file=file)

    assert asked == [
        "/v1/brokers/1:request-restart",
        "/v1/brokers/1:request-restartBearer a.b.c",
    ]


def test_a_refusal_is_logged_once_and_the_request_repeated() -> None:
    """A refusal is logged once, and the request is retried each second until the permit is granted."""
    with listener(REFUSED, REFUSED, REFUSED, PERMITTED) as (listen, asked):
        outcome, told, waited = prepare(listen)

    assert (outcome, waited) == (Preparation.PERMITTED, 3.0)
    assert asked == ["/v1/brokers/1:request-restart"] * 4
    assert [missing(line, 1, each) for line, each in zip(told, (2, "3.0"), strict=True)] == [[], []]


def test_the_wait_has_an_end() -> None:
    """The hook stops waiting at its time limit, which is below the pod's grace period."""
    with listener(REFUSED) as (listen, _):
        outcome, told, waited = prepare(listen, 2.5)

    assert (outcome, waited) == (Preparation.TIME_IS_OVER, 2.5)
    assert missing(told[-1], 1, "2.5", 2) == []


def test_a_lost_store_is_not_waited_for_until_the_end() -> None:
    """When the store is lost, the hook stops waiting some seconds after the last answer from the controller."""
    lost = 503, json.dumps({"code": "coordination_unavailable", "detail": "etcd does not answer"}).encode()
    with listener(lost) as (listen, _):
        outcome, told, waited = prepare(listen)
    with listener(*[lost] * 10, REFUSED, *[lost] * 10, PERMITTED) as (listen, _):
        election = prepare(listen)[0]

    assert (outcome, waited) == (Preparation.TIME_IS_OVER, UNANSWERED_SECONDS)
    assert "etcd does not answer" in told[-1]
    assert election is Preparation.PERMITTED


@pytest.mark.parametrize("code", ["broker_not_found", "shutting_down"])
def test_an_unregistered_or_stopping_broker_waits_for_nothing(code: str) -> None:
    """The hook of an unregistered or already stopping broker does not wait."""
    problem = {"code": code, "detail": "no broker 1 is registered"}
    with listener((404, json.dumps(problem).encode())) as (listen, asked):
        outcome, told, waited = prepare(listen)

    assert (outcome, waited, len(asked)) == (Preparation.NOTHING_TO_DO, 0.0, 1)
    assert len(told) == 1
    assert problem["detail"] in told[0]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"code": 3}', b"\xff"])
def test_an_answer_that_is_no_problem_is_asked_again(body: bytes) -> None:
    """If an answer is not a problem document, its status is logged and the request is retried."""
    with listener((503, body), PERMITTED) as (listen, _):
        outcome, told, _ = prepare(listen)

    assert outcome is Preparation.PERMITTED
    assert missing(told[0], 1, 503) == []


def test_the_hook_does_not_wait_for_a_broker_that_does_not_serve() -> None:
    """The hook does not wait for a broker that no longer serves."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome, told, waited = prepare(Endpoint("127.0.0.1", port))

    assert (outcome, waited) == (Preparation.NOTHING_TO_DO, 0.0)
    assert [missing(line, 1, f"127.0.0.1:{port}") for line in told] == [[]]
