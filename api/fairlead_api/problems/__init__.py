"""Catalogue of all problems that Fairlead can report in an answer, and the exception for these problems.

The broker converts a `ProblemError` to an `application/problem+json` answer (RFC 9457), and the SDK converts the answer
to the same exception. `api` and the broker raise every refusal as a `ProblemError`. This module must not depend on HTTP
headers or frameworks, only on the status and the JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from fairlead_api.problems.cluster import CLUSTER_PROBLEMS
from fairlead_api.problems.definitions import JSON, DataMember, ProblemDefinition, ProblemKind, SideEffect
from fairlead_api.problems.links import LINK_PROBLEMS
from fairlead_api.problems.requests import REQUEST_PROBLEMS
from fairlead_api.problems.security import SECURITY_PROBLEMS
from fairlead_api.problems.state import STATE_PROBLEMS
from fairlead_api.problems.transactions import TRANSACTION_PROBLEMS

CATALOGUE: Final[Mapping[str, ProblemDefinition]] = MappingProxyType(
    {
        definition.code: definition
        for definition in (
            *REQUEST_PROBLEMS,
            *STATE_PROBLEMS,
            *TRANSACTION_PROBLEMS,
            *CLUSTER_PROBLEMS,
            *SECURITY_PROBLEMS,
            *LINK_PROBLEMS,
        )
    }
)
"""All problems by code."""


__all__ = [
    "CATALOGUE",
    "JSON",
    "DataMember",
    "ProblemDefinition",
    "ProblemError",
    "ProblemKind",
    "SideEffect",
]

_RESERVED: Final = frozenset(
    {"type", "title", "status", "detail", "code", "kind", "retryable", "side_effect", "retry_after_seconds"}
)


class ProblemError(Exception):
    """Refusal of a request, with a problem from the catalogue and the detail of this occurrence.

    `detail` names the subject, the numbers and the allowed values. `data` contains the members that the catalogue lists
    for the code. `retry_after_seconds` is the retry delay advised by the broker, which is also sent as `Retry-After`.
    `side_effect` overrides the catalogue's value for this occurrence: for example, a storage failure after the append
    has the side effect `maybe`.
    """

    definition: ProblemDefinition
    detail: str
    retry_after_seconds: float | None
    side_effect: SideEffect
    data: dict[str, JSON]

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        retry_after_seconds: float | None = None,
        side_effect: SideEffect | None = None,
        data: Mapping[str, JSON] | None = None,
    ) -> None:
        """Raise `KeyError` for an unknown code, and `ValueError` for data with the name of a standard member."""
        _fill(self, CATALOGUE[code], detail, retry_after_seconds, side_effect, dict(data or {}))

    @property
    def code(self) -> str:
        """Stable name of the problem."""
        return self.definition.code

    @property
    def status(self) -> int:
        """HTTP status of the problem."""
        return self.definition.status

    @property
    def kind(self) -> ProblemKind:
        """Kind of the problem, which determines the required reaction of the caller."""
        return self.definition.kind

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when retried."""
        return self.definition.retryable

    def to_document(self) -> dict[str, JSON]:
        """Return the RFC 9457 document, in which the data members follow the standard members."""
        document: dict[str, JSON] = {
            "type": self.definition.type_uri,
            "title": self.definition.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "kind": self.kind.value,
            "retryable": self.retryable,
            "side_effect": self.side_effect.value,
        }
        if self.retry_after_seconds is not None:
            document["retry_after_seconds"] = self.retry_after_seconds
        document.update(self.data)
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, JSON]) -> ProblemError:
        """Return the exception for a document, which may come from a newer broker.

        A document with an unknown code keeps its status and its kind; if the kind is unknown too, it is derived from
        the status. The method never raises an exception, regardless of the contents of the JSON object.
        """
        definition = _definition_in(document)
        problem = cls.__new__(cls)
        _fill(
            problem,
            definition,
            _text(document.get("detail"), definition.title),
            _seconds(document.get("retry_after_seconds")),
            _side_effect_in(document, definition),
            {name: value for name, value in document.items() if name not in _RESERVED},
        )
        return problem

    def __reduce__(self) -> tuple[Callable[[Mapping[str, JSON]], ProblemError], tuple[dict[str, JSON]]]:
        """Pickle the exception as its document."""
        return ProblemError.from_document, (self.to_document(),)


def _fill(
    problem: ProblemError,
    definition: ProblemDefinition,
    detail: str,
    retry_after_seconds: float | None,
    side_effect: SideEffect | None,
    data: dict[str, JSON],
) -> None:
    hidden = _RESERVED & data.keys()
    if hidden:
        message = f"the data of {definition.code} must not contain the reserved members {sorted(hidden)}"
        raise ValueError(message)
    problem.args = (f"{definition.code}: {detail}",)
    problem.definition = definition
    problem.detail = detail
    problem.retry_after_seconds = retry_after_seconds
    problem.side_effect = definition.side_effect if side_effect is None else side_effect
    problem.data = data


def _definition_in(document: Mapping[str, JSON]) -> ProblemDefinition:
    code = _text(document.get("code"), "internal" if "status" not in document else "unknown")
    known = CATALOGUE.get(code)
    if known is not None:
        return known
    status = document.get("status")
    if not isinstance(status, int) or isinstance(status, bool):
        status = 500
    return ProblemDefinition(
        code=code,
        status=status,
        title=_text(document.get("title"), f"Problem {code}"),
        kind=_kind_in(document, status),
        explanation="A problem that a newer broker reports and that this release does not know.",
        next_step="Act according to the problem's kind.",
    )


def _kind_in(document: Mapping[str, JSON], status: int) -> ProblemKind:
    named = document.get("kind")
    for kind in ProblemKind:
        if named == kind.value:
            return kind
    if document.get("retryable") is True or status in (429, 503, 504, 507):
        return ProblemKind.RETRY
    return ProblemKind.BUG if status >= 500 else ProblemKind.FIX


def _side_effect_in(document: Mapping[str, JSON], definition: ProblemDefinition) -> SideEffect:
    """Return the side effect in a document; for a server failure with an unknown value, return `maybe` to be safe."""
    value = document.get("side_effect")
    if value == SideEffect.NONE.value:
        return SideEffect.NONE
    if value == SideEffect.MAYBE.value or definition.status >= 500:
        return SideEffect.MAYBE
    return definition.side_effect


def _text(value: JSON, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


def _seconds(value: JSON) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
