"""Golden files: descriptions of the contract without their prose, with which tests compare this checkout.

The tests of this folder use this module, and so does `snapshot`, which explains when a golden file may change.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"
_WIDTH = 110
_TEXTS = frozenset({"description", "summary", "title", "message", "explanation"})


def rendered(value: Any) -> str:
    """Return the text of a golden file: JSON with sorted names and short values on one line."""
    return _rendered(value, 0) + "\n"


def differences(subject: str, described: Any) -> list[str]:
    """Return the lines by which a description differs from its golden file, as a unified diff."""
    path = FOLDER / f"{subject}.json"
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    return list(
        difflib.unified_diff(
            golden.splitlines(),
            rendered(described).splitlines(),
            path.name,
            "this checkout",
            lineterm="",
            n=2,
        )
    )


def assert_unchanged(subject: str, described: Any) -> None:
    """Fail with the difference unless a description equals its golden file."""
    found = differences(subject, described)

    assert not found, "\n".join(["the contract differs from its golden file", *found[:80]])


def read(subject: str) -> Any:
    """Return the content of a golden file."""
    return json.loads((FOLDER / f"{subject}.json").read_text(encoding="utf-8"))


def without_texts(schema: Any) -> Any:
    """Return a JSON schema or an OpenAPI document without its sentences, and with its unordered lists sorted.

    A field that is named `description` stays: its value is a schema, not text.
    """
    if isinstance(schema, dict):
        kept = {
            name: value for name, value in schema.items() if not (name in _TEXTS and isinstance(value, str))
        }
        return {name: _sorted(name, without_texts(value)) for name, value in kept.items()}
    if isinstance(schema, list):
        return [without_texts(each) for each in schema]
    return schema


def inlined(schema: Any) -> Any:
    """Return a JSON schema with each reference replaced by its target, because names of inner types may change."""
    definitions = schema.get("$defs", {})

    def put_in(value: Any) -> Any:
        if isinstance(value, list):
            return [put_in(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return put_in(definitions[value["$ref"].rpartition("/")[2]]) | {
                name: put_in(each) for name, each in value.items() if name not in ("$ref", "$defs")
            }
        return {name: put_in(each) for name, each in value.items() if name != "$defs"}

    return put_in(schema)


def _sorted(name: str, value: Any) -> Any:
    if name in ("required", "enum", "anyOf", "oneOf", "parameters") and isinstance(value, list):
        return sorted(value, key=lambda each: json.dumps(each, sort_keys=True))
    return value


def _rendered(value: Any, depth: int) -> str:
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if not isinstance(value, dict | list) or 2 * depth + len(line) <= _WIDTH:
        return line
    indent = "  " * (depth + 1)
    if isinstance(value, dict):
        names = sorted(value)
        parts = [
            f"{json.dumps(name, ensure_ascii=False)}: {_rendered(value[name], depth + 1)}" for name in names
        ]
        begin, end = "{", "}"
    else:
        parts = [_rendered(each, depth + 1) for each in value]
        begin, end = "[", "]"
    inside = ",\n".join(indent + part for part in parts)
    return f"{begin}\n{inside}\n{'  ' * depth}{end}"
