"""Pages of a broker: the API reference (`GET /docs`), the OpenAPI document, and one page for each problem.

Used by `application` for the routes named in `endpoints`. The API reference loads only its style sheet, and its content
security policy forbids all other resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from http import HTTPStatus
from typing import Final

import msgspec

from fairlead_api.bodies.media_types import HTML, STYLES
from fairlead_api.excerpts import shown
from fairlead_api.problems import CATALOGUE, ProblemDefinition, ProblemError
from fairlead_api.routes.definitions import Listener
from fairlead_api.routes.openapi import document
from fairlead_broker.server.admin.docs_page import STYLE_SHEET, STYLES_NAME, docs_page
from fairlead_broker.server.http.call import JSON_CONTENT_TYPE, Call, Endpoint, answer_type

_POLICY: Final = (
    b"default-src 'none'; style-src 'self'; img-src data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CACHED: Final = ((b"cache-control", b"public, max-age=3600"), (b"x-content-type-options", b"nosniff"))


class DocsPageCalls:
    """Endpoints of the API reference and its style sheet; the page is generated once."""

    def __init__(self, release: str) -> None:
        self._release = release
        self._page: bytes | None = None

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"docs": self.docs, "docs_asset": self.docs_asset}

    async def docs(self, call: Call) -> None:
        """``GET /docs``."""
        if self._page is None:
            self._page = docs_page(self._release).encode()
        policy = (b"content-security-policy", _POLICY)
        await call.answer(HTTPStatus.OK, [_content_type(HTML), policy, *_CACHED], self._page)

    async def docs_asset(self, call: Call) -> None:
        """``GET /docs/{asset}``. Raises ProblemError route_not_found for an unknown file name."""
        name = call.parameters["asset"]
        if name != STYLES_NAME:
            raise ProblemError("route_not_found", f"the page /docs has no file {shown(name)}")
        await call.answer(HTTPStatus.OK, [_content_type(STYLES), *_CACHED], STYLE_SHEET.encode())


class OpenApiCalls:
    """Endpoint of the OpenAPI document of this release; the document is generated once."""

    def __init__(self, release: str) -> None:
        self._release = release
        self._body: bytes | None = None

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"openapi": self.openapi}

    async def openapi(self, call: Call) -> None:
        """``GET /openapi.json``."""
        if self._body is None:
            self._body = msgspec.json.encode(document(self._release, {Listener.DATA}))
        await call.answer(HTTPStatus.OK, [JSON_CONTENT_TYPE], self._body)


class ProblemPageCalls:
    """Endpoint that serves the pages of the problem catalogue."""

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {"problem_page": self.problem_page}

    async def problem_page(self, call: Call) -> None:
        """``GET /problems/{code}``: plain text, or HTML if the caller prefers it."""
        code = call.parameters["code"]
        definition = CATALOGUE.get(code)
        if definition is None:
            raise ProblemError("route_not_found", f"there is no problem {shown(code)}")
        media_type = answer_type(call)
        page = _html(definition) if media_type == HTML else _text(definition)
        await call.answer(HTTPStatus.OK, [_content_type(media_type)], page.encode())


def _content_type(media_type: str) -> tuple[bytes, bytes]:
    return b"content-type", f"{media_type}; charset=utf-8".encode()


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
