"""Patterns over names: a name, or a prefix that ends in `*`, or `*` alone (security contract, section 0).

ACLs use the same patterns for principals, topics, groups and producers. A tenant is represented by a prefix of names.
Checks of requests and the broker's access decisions use this module, which must not depend on the kind of the named
objects. `literal_prefix` relates these patterns to the regular expressions by which group members subscribe to topics.
"""

from __future__ import annotations

import re
from typing import Final

ANY: Final = "*"
"""Pattern that matches every name, except names that begin with `HIDDEN`."""
HIDDEN: Final = "__"
"""Prefix of internal names, which are matched only by patterns with the same prefix (rule Z6)."""
_NAME_PATTERN: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}|[a-zA-Z0-9._-]{0,248}\*")


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name. Names that begin with `__` need a pattern that begins with `__`."""
    if name.startswith(HIDDEN) and not pattern.startswith(HIDDEN):
        return False
    if pattern.endswith(ANY):
        return name.startswith(pattern[:-1])
    return name == pattern


def contains(outer: str, inner: str) -> bool:
    """Return whether every name that the inner pattern matches is also matched by the outer pattern."""
    if not inner.endswith(ANY):
        return matches(outer, inner)
    prefix = inner[:-1]
    if not outer.endswith(ANY) or not prefix.startswith(outer[:-1]):
        return False
    # An inner pattern that begins with `__` matches only hidden names; any other inner pattern matches no hidden name.
    return outer.startswith(HIDDEN) or not inner.startswith(HIDDEN)


def literal_prefix(expression: str) -> str:
    """Return the common prefix of all names that a regular expression matches; empty if the prefix is not obvious.

    An expression with alternatives has no common prefix. A character before a quantifier is not part of the prefix. A
    group member that subscribes by an expression needs `read` on all topics with the prefix (rule Z14), and is assigned
    internal topics only if the prefix begins with `HIDDEN`.
    """
    prefix = ""
    rest = expression.removeprefix("^")
    if "|" in rest:
        return ""
    while rest:
        escaped = rest.startswith("\\.")
        character, rest = ("." if escaped else rest[0]), rest[2 if escaped else 1 :]
        if not (escaped or character.isalnum() or character in "_-") or rest[:1] in ("*", "?", "{"):
            return prefix
        prefix += character
    return prefix


def is_name_pattern(text: str) -> bool:
    """Return whether a text is a pattern over names of topics, groups and producers."""
    return _NAME_PATTERN.fullmatch(text) is not None and text not in (".", "..")
