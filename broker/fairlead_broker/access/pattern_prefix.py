"""Common prefix of all names that a topic pattern matches, for checking a subscription (rule Z14).

The calls of group members use this module.
"""

from __future__ import annotations


def literal_prefix(pattern: str) -> str:
    """Return the common prefix of all names that a pattern matches; empty if the prefix is not obvious.

    A pattern with alternatives has no common prefix. A character before a quantifier is not part of the prefix.
    """
    prefix = ""
    rest = pattern.removeprefix("^")
    if "|" in rest:
        return ""
    while rest:
        escaped = rest.startswith("\\.")
        character, rest = ("." if escaped else rest[0]), rest[2 if escaped else 1 :]
        if not (escaped or character.isalnum() or character in "_-") or rest[:1] in ("*", "?", "{"):
            return prefix
        prefix += character
    return prefix
