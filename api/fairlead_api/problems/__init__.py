"""Every refusal that Fairlead can answer, as one catalogue and one exception.

The server turns a `ProblemError` into an `application/problem+json` answer (RFC 9457), the SDK turns the
answer back into the same exception. Everything that `api` or the broker can refuse is raised as a
`ProblemError`. Must not know HTTP headers or frameworks: only the status number and the JSON document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from fairlead_api.problems.cluster import CLUSTER_PROBLEMS
from fairlead_api.problems.definitions import JSON, DataMember, ProblemDefinition, ProblemKind, SideEffect
from fairlead_api.problems.requests import REQUEST_PROBLEMS
from fairlead_api.problems.state import STATE_PROBLEMS

CATALOGUE: Final[Mapping[str, ProblemDefinition]] = MappingProxyType(
    {definition.code: definition for definition in (*REQUEST_PROBLEMS, *STATE_PROBLEMS, *CLUSTER_PROBLEMS)}
)
"""Every problem by its code."""


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
    """A refusal of the catalogue, with the detail of this occurrence.

    `detail` names the subject, the numbers and what is allowed. `data` holds the members that the catalogue
    lists for the code. `retry_after_seconds` is the server's advice, also sent as `Retry-After`.
    `side_effect` overrides the catalogue where the occurrence knows better: a storage failure after the
    append is `maybe`.
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
        """Raise `KeyError` for an unknown code, `ValueError` for data that hides a standard member."""
        _fill(self, CATALOGUE[code], detail, retry_after_seconds, side_effect, dict(data or {}))

    @property
    def code(self) -> str:
        """The stable name of the problem."""
        return self.definition.code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.definition.status

    @property
    def kind(self) -> ProblemKind:
        """The caller's next move."""
        return self.definition.kind

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed when it is sent again."""
        return self.definition.retryable

    def to_document(self) -> dict[str, JSON]:
        """Return the RFC 9457 document; the data members stand beside the standard ones."""
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
        """Rebuild the exception from a document, even one of a newer server.

        A code that this release does not know keeps the status and the kind that the document names; a
        document without a usable kind gets the kind of its status. Never raises for a JSON object of any
        content.
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
        """Travel between processes as the document does."""
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
        message = f"data of {definition.code} hides the members {sorted(hidden)}"
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
        explanation="A problem that this release does not know; a newer server sent it.",
        next_step="Act by its kind.",
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
    """Read the side effect; an unknown one after a server failure is `maybe`, the careful reading."""
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
