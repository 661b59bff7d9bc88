"""Conversion of failures to answers: a ProblemError to ``application/problem+json``, any other exception to 500.

Callers: ``application`` for every request. This module must not depend on any particular route.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from fairlead_api.bodies.media_types import PROBLEM
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.registry.caller_side import CallerSide
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.server.http.call import THROTTLE_MS
from fairlead_broker.telemetry import Log

Registrations: TypeAlias = Callable[[], Mapping[BrokerId, Versioned[BrokerRegistration]]]
"""Function that returns the registered brokers."""
_CONTENT_TYPE: Final = (b"content-type", PROBLEM.encode())


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """Status, headers (without Content-Length) and body of one refusal."""

    status: int
    headers: HeaderList
    body: bytes


def problem_answer(problem: ProblemError) -> ProblemAnswer:
    """Return the RFC 9457 answer for a problem, with the headers that its code requires."""
    headers: HeaderList = [_CONTENT_TYPE]
    if problem.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(problem.retry_after_seconds)))
        if problem.code == "throttled" and "quota" in problem.data:
            # `Call` adds this header only to answers of charged requests; a refused request is not charged (rule Q6).
            headers.append((THROTTLE_MS, b"%d" % math.ceil(problem.retry_after_seconds * 1000)))
    if problem.code == "method_not_allowed":
        headers.append((b"allow", _listed(problem.data.get("allowed")).encode()))
    if problem.code == "unauthenticated":
        headers.append((b"www-authenticate", b'Bearer realm="fairlead"'))
    return ProblemAnswer(problem.status, headers, msgspec.json.encode(problem.to_document()))


def with_address_for(
    problem: ProblemError, side: CallerSide, brokers: Mapping[BrokerId, Versioned[BrokerRegistration]]
) -> ProblemError:
    """Return the problem with the address of a broker for the client.

    The runtime does not know the side of a client and names a broker by its first address.
    """
    named = problem.data.get("address")
    if not isinstance(named, str):
        return problem
    for registered in brokers.values():
        addresses = registered.value.addresses
        if addresses.any_data == named:
            problem.data["address"] = (side.url_of(addresses) or "").rpartition("://")[2] or None
            break
    return problem


class FailureLog:
    """Log of unexpected failures. Each failure is logged under a failure id, and the caller gets only the id.

    ``life`` distinguishes the ids of this run of the broker from the ids of other runs.
    """

    def __init__(self, log: Log, life: str) -> None:
        self._log = log
        self._life = life
        self._numbers = itertools.count(1)

    def record(self, error: BaseException, route: str, *, mutating: bool = False) -> ProblemError:
        """Log the exception with its traceback, and return the problem for the answer.

        ``mutating``: the call may have changed state before it failed, so the side effect is ``maybe``.
        """
        number = f"{self._life}-{next(self._numbers)}"
        self._log.error("request failed unexpectedly", route=route, failure_id=number, exc_info=error)
        return ProblemError(
            "internal",
            f"the broker failed unexpectedly; its log shows the cause under failure id {number}",
            side_effect=SideEffect.MAYBE if mutating else SideEffect.NONE,
            data={"failure_id": number},
        )


def _listed(value: object) -> str:
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)
