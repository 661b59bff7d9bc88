"""The one place where a failure becomes an answer: ProblemError to ``application/problem+json``, the rest to 500.

Callers: ``application`` for every request. It must not know any route.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead_api.bodies.media_types import PROBLEM
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.server.http.asgi import HeaderList
from fairlead_broker.telemetry import Log

_CONTENT_TYPE: Final = (b"content-type", PROBLEM.encode())


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """Status, headers (but content-length) and body of one refusal."""

    status: int
    headers: HeaderList
    body: bytes


def problem_answer(problem: ProblemError) -> ProblemAnswer:
    """The RFC 9457 answer of a refusal, with ``Retry-After`` and ``Allow`` where the problem carries them."""
    headers: HeaderList = [_CONTENT_TYPE]
    if problem.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(problem.retry_after_seconds)))
    if problem.code == "method_not_allowed":
        headers.append((b"allow", _listed(problem.data.get("allowed")).encode()))
    return ProblemAnswer(problem.status, headers, msgspec.json.encode(problem.to_document()))


class FailureLog:
    """Unexpected failures: logged with a number; the caller gets that number and nothing else.

    ``life`` tells the numbers of this start of the broker from those of another.
    """

    def __init__(self, log: Log, life: str) -> None:
        self._log = log
        self._life = life
        self._numbers = itertools.count(1)

    def record(self, error: Exception, route: str, *, mutating: bool = False) -> ProblemError:
        """Log with its trace, and return what to tell the caller.

        ``mutating``: the call may have changed something before it failed, so the side effect is ``maybe``.
        """
        number = f"{self._life}-{next(self._numbers)}"
        self._log.error("request_failed", route=route, failure_id=number, exc_info=error)
        return ProblemError(
            "internal",
            f"the broker failed unexpectedly; its log has the cause under failure id {number}",
            side_effect=SideEffect.MAYBE if mutating else SideEffect.NONE,
            data={"failure_id": number},
        )


def _listed(value: object) -> str:
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)
