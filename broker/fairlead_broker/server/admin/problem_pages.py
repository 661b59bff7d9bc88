"""The page behind the ``type`` of every problem: ``GET /problems/{code}``, for a person with a browser or curl.

Callers: ``application`` for the routes named in ``endpoints``. The text is the catalogue's; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from fastapi import Response

from fairlead_api.bodies.media_types import HTML, TEXT
from fairlead_api.excerpts import shown
from fairlead_api.problems import CATALOGUE, ProblemDefinition, ProblemError
from fairlead_broker.server.http.negotiation import answer_type
from fairlead_broker.server.http.responses import AdminEndpoint, CurrentCall

_UTF8 = "; charset=utf-8"


class ProblemPageCalls:
    """The pages of the problem catalogue."""

    def endpoints(self) -> Mapping[str, AdminEndpoint]:
        """The endpoint of each route of this family, by route name."""
        return {"problem_page": self.problem_page}

    async def problem_page(self, call: CurrentCall) -> Response:
        """``GET /problems/{code}``: plain text, or HTML for who prefers it."""
        code = call.parameters["code"]
        definition = CATALOGUE.get(code)
        if definition is None:
            raise ProblemError("route_not_found", f"there is no problem {shown(code)}")
        if answer_type(call) == HTML:
            return Response(_html(definition), media_type=HTML + _UTF8)
        return Response(_text(definition), media_type=TEXT + _UTF8)


def _facts(definition: ProblemDefinition) -> list[tuple[str, str]]:
    return [
        ("code", definition.code),
        ("status", str(definition.status)),
        ("kind", definition.kind.value),
        ("retryable", str(definition.retryable).lower()),
        ("side effect", definition.side_effect.value),
        *((f"data: {member.name}", member.explanation) for member in definition.data_members),
    ]


def _text(definition: ProblemDefinition) -> str:
    facts = "\n".join(f"{name}: {value}" for name, value in _facts(definition))
    return (
        f"{definition.title}\n{'=' * len(definition.title)}\n\n{facts}\n\n"
        f"What happened\n\n{definition.explanation}\n\nWhat to do\n\n{definition.next_step}\n"
    )


def _html(definition: ProblemDefinition) -> str:
    title = escape(definition.title)
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _facts(definition)
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><h1>{title}</h1>'
        f"<table>{rows}</table><h2>What happened</h2><p>{escape(definition.explanation)}</p>"
        f"<h2>What to do</h2><p>{escape(definition.next_step)}</p></html>"
    )
