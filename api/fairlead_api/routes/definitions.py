"""What a route is: the types of which the route table is made.

Read by `routes` (the table), `openapi`, the server and the docs generator. Must not know any single call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairlead_api.routes.query_parameters import QueryParameter


class Listener(StrEnum):
    """Which of a broker's listeners serves a call."""

    DATA = "data"
    OPS = "ops"
    PEER = "peer"


class Operation(StrEnum):
    """What a call does to its resource, by the names of Kafka's access rules."""

    DESCRIBE = "describe"
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    READ = "read"
    WRITE = "write"


class Resource(StrEnum):
    """What a call is about; PUBLIC are the calls that anybody may make."""

    PUBLIC = "public"
    CLUSTER = "cluster"
    TOPIC = "topic"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class HeaderParameter:
    """A request header that a call understands beside HTTP's own; `pattern` is what its value must look like."""

    name: str
    explanation: str
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """One way in which a call succeeds.

    `type` is the msgspec type of a JSON body, None for other bodies or none; `other_types` are the shapes
    that the body has instead where a parameter asks for them; `line_types` are the shapes of a line or event where
    the body is a stream of such.
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
    """One call: its path, the operation and resource that access rules name, its parameters, bodies and answers.

    `path` holds its parameters in braces. `request` is the msgspec type of a JSON body, None where the body
    is of another form or there is none; `other_requests` are the shapes that it may have as well, and `line_requests`
    those of a line of NDJSON. `answer` is that of the usual JSON answer. `problems` are codes of
    the catalogue beyond the codes that every call can answer. The server asks `authorize` with `operation` and
    `resource`.
    """

    name: str
    method: str
    path: str
    summary: str
    operation: Operation
    resource: Resource
    answers: tuple[AnswerForm, ...]
    listener: Listener = Listener.DATA
    request: object = None
    other_requests: tuple[object, ...] = ()
    line_requests: tuple[object, ...] = ()
    body_types: tuple[str, ...] = ()
    query: tuple[QueryParameter, ...] = ()
    headers: tuple[HeaderParameter, ...] = ()
    problems: tuple[str, ...] = ()
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    """Name to explanation of the parameters in the path."""

    @property
    def answer(self) -> object:
        """The type of the first answer's JSON body."""
        return self.answers[0].type

    @property
    def answer_types(self) -> tuple[str, ...]:
        """Media types of the first answer, the default first."""
        return self.answers[0].media_types


EVERYWHERE: Final = ("malformed_request", "unknown_option", "forbidden", "internal")
"""Problems that every call of the data listener can answer beside those of its route."""
