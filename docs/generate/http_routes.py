"""Page of all HTTP routes."""

from __future__ import annotations

from page_text import GENERATED, code, codes, table

from fairlead_api.routes import ROUTES, AnswerForm, Listener, Route
from fairlead_api.routes.query_parameters import OffsetExpression, QueryParameter

TEXT = """# HTTP routes

Every call that a broker serves. `/openapi.json` describes the same calls as an OpenAPI 3.1 document. Unknown query
parameters and fields are refused, and the error names them. Every call of the data listener can also answer
[`malformed_request`](problems/malformed_request.md), [`unknown_option`](problems/unknown_option.md) and
[`internal`](problems/internal.md).

*Needs* names the operations that the caller must be allowed, as in [access
rules](../how-to/security.md#tokens-and-access-rules). `public` means every caller, and `self` every authenticated
caller, and `anonymous` if an ACL allows it an operation. *Each in the request* means that the operation must be allowed
on each name in the request; *each in the answer*, that the answer contains only names on which it is allowed.

"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    return {"http-routes.md": GENERATED + TEXT + _overview() + "".join(map(_route, ROUTES))}


def _overview() -> str:
    rows = [
        [f"[`{route.method} {route.path}`](#{route.name})", route.listener, route.summary] for route in ROUTES
    ]
    return table(["call", "listener", "purpose"], rows)


def _route(route: Route) -> str:
    text = f'\n<a id="{route.name}"></a>\n\n## {route.method} {route.path}\n\n{route.summary}.'
    text += f" Needs: {route.access}{', ops listener' if route.listener is Listener.OPS else ''}.\n"
    if route.body_types:
        text += f"\nBody: {codes(route.body_types)}.\n"
    if route.path_parameters:
        rows = [[code(name), meaning] for name, meaning in route.path_parameters.items()]
        text += "\n" + table(["in the path", "meaning"], rows)
    if route.query:
        text += "\n" + table(
            ["query parameter", "allowed", "default", "meaning"], map(_parameter, route.query)
        )
    if route.headers:
        rows = [[code(header.name), header.explanation] for header in route.headers]
        text += "\n" + table(["header", "meaning"], rows)
    text += "\n" + table(["status", "body", "meaning"], map(_answer, route.answers))
    if route.problems:
        links = [f"[`{problem}`](problems/{problem}.md)" for problem in sorted(set(route.problems))]
        text += f"\nProblems: {', '.join(links)}.\n"
    return text


def _parameter(parameter: QueryParameter) -> list[str]:
    default = parameter.default
    if isinstance(default, OffsetExpression):
        default = default.origin.value
    shown = (
        "" if default is None else code(str(default).lower() if isinstance(default, bool) else str(default))
    )
    return [code(parameter.name), parameter.allowed, shown, parameter.explanation]


def _answer(form: AnswerForm) -> list[str]:
    headers = f"; headers {codes(form.headers)}" if form.headers else ""
    return [str(form.status), codes(form.media_types, "none"), form.explanation + headers]
