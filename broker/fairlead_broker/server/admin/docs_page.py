"""The page `/docs`, which describes every call of a broker; the page is generated from the route table.

Used by `pages`, which answers the requests for this page, the OpenAPI document and the pages of problems. This module
only renders the page: it takes the calls from the routes, and the fields of JSON bodies from the schemas of the OpenAPI
document. The page is plain HTML without scripts. This module must not depend on any particular call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import groupby
from typing import Any, Final

import msgspec

from fairlead_api.routes import ROUTES, AnswerForm, Listener, Route
from fairlead_api.routes.definitions import EVERYWHERE
from fairlead_api.routes.openapi import document
from fairlead_api.routes.query_parameters import OffsetExpression, QueryParameter

STYLES_NAME: Final = "calls.css"
STYLE_SHEET: Final = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 64rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid; }
details { border: 1px solid color-mix(in srgb, currentColor 25%, transparent); border-radius: 4px; margin: .4rem 0; }
summary { padding: .4rem .6rem; cursor: pointer; }
details > div { margin: .6rem; }
table { margin: .6rem 0; }
table { border-collapse: collapse; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; }
caption { font-weight: 600; text-align: left; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
.method { display: inline-block; min-width: 4rem; font-weight: 600; }
"""
_HEAD: Final = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fairlead HTTP API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/{STYLES_NAME}">
</head>
<body>
<h1>Fairlead HTTP API</h1>
"""
_REFERENCE: Final = "#/components/schemas/"

Schema = Mapping[str, Any]


def docs_page(release: str) -> str:
    """Return the HTML page for a broker of this release."""
    openapi: Schema = document(release)
    schemas = openapi["components"]["schemas"]
    served = sorted(
        (route for route in ROUTES if route.listener is Listener.DATA), key=lambda route: route.subject
    )
    common = ", ".join(map(_problem_link, EVERYWHERE))
    return "".join(
        (
            _HEAD,
            f"<p>Release {escape(release)}. The same information for programs is in "
            '<a href="/openapi.json">/openapi.json</a>, an OpenAPI 3.1 document. Unknown query parameters and fields '
            f"are refused by name. Every call can also answer {common}.</p>\n",
            *(
                f'<h2 id="{resource}">{resource.capitalize()}</h2>\n'
                + "".join(_call(route, openapi["paths"][route.path][route.method.lower()]) for route in group)
                for resource, group in groupby(served, key=lambda route: route.subject)
            ),
            '<h2 id="bodies">JSON bodies</h2>\n',
            *(_body(name, schemas[name]) for name in sorted(schemas)),
            "</body>\n</html>\n",
        )
    )


def _call(route: Route, operation: Schema) -> str:
    parts = [
        f"<p>Name <code>{route.name}</code>; needs <code>{escape(str(route.access))}</code>.{_link(route)}</p>\n"
    ]
    if route.path_parameters:
        rows = [(_code(name), escape(meaning)) for name, meaning in route.path_parameters.items()]
        parts.append(_table("Path", ("parameter", "meaning"), rows))
    if route.query:
        columns = ("parameter", "allowed", "default", "meaning")
        parts.append(_table("Query", columns, map(_query_parameter, route.query)))
    if route.headers:
        rows = [(_code(header.name), escape(header.explanation)) for header in route.headers]
        parts.append(_table("Headers", ("header", "meaning"), rows))
    if route.body_types:
        parts.append(_table("Body", ("type", "content"), _contents(operation["requestBody"]["content"])))
    answers = [_answer(form, operation["responses"][str(form.status)]) for form in route.answers]
    parts.append(_table("Answers", ("status", "meaning", "body", "headers"), answers))
    if route.problems:
        parts.append(f"<p>Problems: {', '.join(map(_problem_link, sorted(set(route.problems))))}.</p>\n")
    heading = f'<code><span class="method">{route.method}</span> {escape(route.path)}</code> {escape(route.summary)}'
    return _details(route.name, heading, "".join(parts))


def _link(route: Route) -> str:
    """Return a link that sends the call; an empty string if a browser cannot send the call from a link."""
    if route.method != "GET" or route.path_parameters:
        return ""
    return f' Try it: <a href="{route.path}"><code>{route.path}</code></a>.'


def _query_parameter(parameter: QueryParameter) -> tuple[str, ...]:
    default = parameter.default
    if isinstance(default, OffsetExpression):
        default = default.origin.value
    elif isinstance(default, bool):
        default = str(default).lower()
    shown = "" if default is None else _code(str(default))
    return _code(parameter.name), escape(parameter.allowed), shown, escape(parameter.explanation)


def _answer(form: AnswerForm, response: Schema) -> tuple[str, ...]:
    body = "<br>".join(
        f"{media_type} {content}" for media_type, content in _contents(response.get("content", {}))
    )
    return str(form.status), escape(form.explanation), body or "none", ", ".join(map(_code, form.headers))


def _contents(content: Schema) -> list[tuple[str, str]]:
    """Return the media type and the content of each alternative for a body."""
    return [(_code(media_type), _type(described["schema"])) for media_type, described in content.items()]


def _body(name: str, schema: Schema) -> str:
    explanation = f"<p>{escape(schema['description'])}</p>\n" if "description" in schema else ""
    fields = schema.get("properties", {})
    required = schema.get("required", ())
    rows = [
        (_code(field), _type(fields[field]), _default(fields[field], field in required)) for field in fields
    ]
    content = _table("Fields", ("field", "type", "default"), rows) if rows else f"<p>{_type(schema)}</p>\n"
    return _details(f"body-{name}", _code(name), explanation + content)


def _default(schema: Schema, required: bool) -> str:
    if required:
        return "required"
    return _code(msgspec.json.encode(schema["default"]).decode()) if "default" in schema else ""


def _type(schema: Schema) -> str:
    """Return a description of the values that a schema allows."""
    match schema:
        case {"$ref": reference}:
            name = reference.removeprefix(_REFERENCE)
            return f'<a href="#body-{name}"><code>{name}</code></a>'
        case {"x-itemSchema": item, "description": description}:
            return f"{escape(description)}: {_type(item)}"
        case {"anyOf": schemas}:
            return " or ".join(map(_type, schemas))
        case {"enum": values}:
            return " or ".join(_code(str(value)) for value in values)
        case {"const": value}:
            return _code(str(value))
        case {"type": "array", "prefixItems": items}:
            return f"[{', '.join(map(_type, items))}]"
        case {"type": "array", "items": item}:
            return f"list of {_type(item)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"object of {_type(values)}"
        case {"type": str(name)}:
            return " ".join((name, *_bounds(schema)))
        case {"type": list(names)}:
            return " or ".join(names)
        case _:
            return "any JSON value"


def _bounds(schema: Schema) -> Iterable[str]:
    """Yield the bounds and the format of a schema."""
    if "minimum" in schema:
        yield f"from {schema['minimum']}"
    if "maximum" in schema:
        yield f"to {schema['maximum']}"
    if encoding := schema.get("format", schema.get("contentEncoding")):
        yield f"({encoding})"


def _details(anchor: str, heading: str, content: str) -> str:
    # Browsers open a section when a link targets an element inside the section, but not the section itself.
    return f'<details><summary>{heading}</summary>\n<div id="{anchor}">\n{content}</div></details>\n'


def _table(caption: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in rows)
    return f"<table><caption>{caption}</caption>\n<tr>{head}</tr>\n{body}</table>\n"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _problem_link(code: str) -> str:
    return f'<a href="/problems/{code}"><code>{code}</code></a>'
