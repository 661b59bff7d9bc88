"""Pages for people: the calls of a broker (`GET /docs`), its OpenAPI document, and one page for each problem.

Used by `application` for the routes named in `endpoints`. The page of calls is Swagger UI, whose files come with the
package `fastapi-offline`; only the files that the page uses are served, and its policy forbids the browser to call
any other host.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Final

import msgspec
from fastapi import Response

from fairlead_api.bodies.media_types import HTML, JSON, PNG, SCRIPT, STYLES, TEXT
from fairlead_api.excerpts import shown
from fairlead_api.problems import CATALOGUE, ProblemDefinition, ProblemError
from fairlead_api.routes.openapi import document
from fairlead_broker.server.http.call import answer_type
from fairlead_broker.server.http.codec_threads import in_thread
from fairlead_broker.server.http.responses import AdminEndpoint, CurrentCall

_PACKAGE: Final = "fastapi_offline"
_UTF8: Final = "; charset=utf-8"
_MEDIA_TYPES: Final = {
    "swagger-ui-bundle.js": SCRIPT + _UTF8,
    "swagger-ui.css": STYLES + _UTF8,
    "favicon.png": PNG,
}
"""The package's files that the page uses."""
_START: Final = "start.js"
# Swagger UI writes styles into its elements, and its pictures stand in its style sheet.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CACHED: Final = {"cache-control": "public, max-age=3600", "x-content-type-options": "nosniff"}
_PAGE: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fairlead HTTP API</title>
<link rel="icon" href="/docs/favicon.png">
<link rel="stylesheet" href="/docs/swagger-ui.css">
</head>
<body>
<div id="calls">
<noscript>The page needs JavaScript; the same is in <a href="/openapi.json">/openapi.json</a>.</noscript>
</div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/{_START}"></script>
</body>
</html>
"""
# Without `validatorUrl` the page would show the document to a service of the internet.
_SCRIPT: Final = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#calls",
  deepLinking: true,
  displayOperationId: true,
  docExpansion: "none",
  filter: true,
  validatorUrl: null,
});
"""


class DocsPageCalls:
    """The page and its parts."""

    def endpoints(self) -> Mapping[str, AdminEndpoint]:
        """The endpoint of each route of this family, by route name."""
        return {"docs": self.docs, "docs_asset": self.docs_asset}

    async def docs(self, call: CurrentCall) -> Response:
        """``GET /docs``."""
        del call
        return Response(
            _PAGE, media_type=HTML + _UTF8, headers={"content-security-policy": _POLICY, **_CACHED}
        )

    async def docs_asset(self, call: CurrentCall) -> Response:
        """``GET /docs/{asset}``. Raises ProblemError route_not_found for any other name."""
        name = call.parameters["asset"]
        if name == _START:
            return Response(_SCRIPT, media_type=SCRIPT + _UTF8, headers=_CACHED)
        media_type = _MEDIA_TYPES.get(name)
        if media_type is None:
            raise ProblemError("route_not_found", f"the page /docs has no part {shown(name)}")
        return Response(await in_thread(_content, name), media_type=media_type, headers=_CACHED)


def _content(name: str) -> bytes:
    """A file of the package, which is 1.5 MB at most."""
    return files(_PACKAGE).joinpath("static", name).read_bytes()


class OpenApiCalls:
    """The OpenAPI document of this release, made once."""

    def __init__(self, release: str) -> None:
        self._release = release
        self._body: bytes | None = None

    def endpoints(self) -> Mapping[str, AdminEndpoint]:
        """The endpoint of each route of this family, by route name."""
        return {"openapi": self.openapi}

    async def openapi(self, call: CurrentCall) -> Response:
        """``GET /openapi.json``."""
        del call
        if self._body is None:
            self._body = msgspec.json.encode(document(self._release))
        return Response(self._body, media_type=JSON)


class ProblemPageCalls:
    """The pages of the problem catalogue."""

    def endpoints(self) -> Mapping[str, AdminEndpoint]:
        """The endpoint of each route of this family, by route name."""
        return {"problem_page": self.problem_page}

    async def problem_page(self, call: CurrentCall) -> Response:
        """``GET /problems/{code}``: plain text, or HTML if preferred."""
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
