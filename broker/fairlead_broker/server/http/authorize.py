"""Who may do what: one question, asked for every request before its endpoint runs.

Callers: ``application``. Everything is allowed until authentication arrives; the route table already names the
operation and the resource of each call, so that no call can be forgotten then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever calls. ``name`` is what an access rule and a log line would say."""

    name: str


ANONYMOUS: Final = Principal("anonymous")


def authorize(principal: Principal, operation: str, resource: str) -> None:
    """Return if ``principal`` may do ``operation`` on ``resource``, else raise ProblemError forbidden.

    ``resource`` is a kind, or a kind and a name as in ``topic:flights``.
    """
    del principal, operation, resource
