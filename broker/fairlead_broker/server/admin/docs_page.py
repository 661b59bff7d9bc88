"""``GET /docs``: the OpenAPI document as a page to read and to try calls on, for machines without the internet.

Callers: ``application`` for the routes named in ``endpoints``. The page is Swagger UI, whose files come with the
package ``fastapi-offline``; only those that the page uses are served, and its policy forbids the browser to ask
anybody but this broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from fastapi import Response

from fairlead_api.bodies.media_types import HTML, PNG, SCRIPT, STYLES
from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError
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
