"""Types of the route table.

`routes` (the table), `openapi`, the broker and the docs generator use this module, which must not depend on any
particular call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead_api.access_needs import Access
    from fairlead_api.routes.query_parameters import QueryParameter


class Listener(StrEnum):
    """Listener of a broker that serves a call."""

    DATA = "data"
    OPS = "ops"
    PEER = "peer"


class Traffic(StrEnum):
    """Purpose of a call, for quotas and for the audit log."""

    CALL = "call"
    """Call that is neither routine nor a produce or fetch call; calls that change something are audited."""
    PRODUCE = "produce"
    FETCH = "fetch"
    ROUTINE = "routine"
    """Call that clients repeat while they work, or that only looks something up; routine calls are not audited."""


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    """Non-standard request header that a call supports; its value must match the regular expression `pattern`."""

    name: str
    explanation: str
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """Format of a successful answer to a call.

    `type` is the msgspec type of a JSON body, or None if there is no JSON body. `other_types` are alternative types of
    the body, selected by a parameter. `line_types` are the types of the lines or events of a streamed body.
    """

    status: int
    explanation: str
    type: object = None
    other_types: tuple[object, ...] = ()
    line_types: tuple[object, ...] = ()
    media_types: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Definition of a call: path, access, parameters, bodies and answers.

    `path` contains the parameters in braces. `request` is the msgspec type of a JSON body, or None if there is no JSON
    body. `other_requests` are further media types of the body, and `line_requests` are the types of a line of NDJSON.
    `answer` is the type of the normal JSON answer. `problems` are codes of the catalogue in addition to the codes that
    every call can answer. `access` describes the callers and the permissions that the call requires (rule Z15).
    """

    name: str
    method: str
    path: str
    summary: str
    access: Access
    answers: tuple[AnswerForm, ...]
    listener: Listener = Listener.DATA
    request: object = None
    other_requests: tuple[object, ...] = ()
    line_requests: tuple[object, ...] = ()
    body_types: tuple[str, ...] = ()
    is_body_optional: bool = False
    """Whether a call without a body is treated like a call with an empty JSON object."""
    query: tuple[QueryParameter, ...] = ()
    headers: tuple[HeaderParameter, ...] = ()
    problems: tuple[str, ...] = ()
    traffic: Traffic = Traffic.CALL
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    """Explanations of the path parameters, by name."""

    @property
    def is_audited(self) -> bool:
        """Whether the audit log reports every answer (rule U2)."""
        return self.traffic is Traffic.CALL and self.method != "GET" and self.listener is Listener.DATA

    @property
    def subject(self) -> str:
        """Kind of the resource that the call is about, by which calls are grouped; else callers, such as `public`."""
        return self.access.needs[0].kind.value if self.access.needs else self.access.audience.value

    @property
    def operation(self) -> str:
        """Operation of the first permission that the call needs, or `describe` if it needs none."""
        return self.access.needs[0].operation.value if self.access.needs else "describe"

    @property
    def answer(self) -> object:
        """Type of the JSON body of the route's first answer."""
        return self.answers[0].type

    @property
    def answer_types(self) -> tuple[str, ...]:
        """Media types of the route's first answer, starting with the default."""
        return self.answers[0].media_types


EVERYWHERE: Final = (
    "malformed_request",
    "unknown_option",
    "unauthenticated",
    "throttled",
    "forbidden",
    "internal",
)
"""Codes of the problems that every call of the data listener can answer in addition to the problems of its route."""
