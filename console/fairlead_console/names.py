"""Names of groups and producers in addresses and in the fields that confirm a deletion. Pure.

A name may contain every printable character, so it must be encoded in the path of an address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

from pydantic import AfterValidator

_SYNTAX: Final = re.compile(r"[\^$\\.*+?()\[\]{}|/]")
"""Characters with a meaning in a regular expression of HTML; browsers refuse an escape before any other character."""


def segment(name: str) -> str:
    """Return a name as one segment of a path.

    A server decodes a path before it separates the segments, so a slash is encoded twice.
    """
    return quote(name.replace("%", "%25").replace("/", "%2F"), safe="")


NameInPath = Annotated[str, AfterValidator(unquote)]
"""Name that `segment` has encoded and the server has decoded once."""


def address(scope: Mapping[str, Any]) -> str:
    """Return the path and the query of a request as the browser has encoded them; `scope` is that of ASGI."""
    path, query = bytes(scope["raw_path"]), bytes(scope["query_string"])
    return (path + b"?" * bool(query) + query).decode("latin-1")


def pattern(name: str) -> str:
    """Return the attribute `pattern` of a field that accepts only the name."""
    return _SYNTAX.sub(r"\\\g<0>", name)
