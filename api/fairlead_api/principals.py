"""Names of callers: `<source>:<name>`, groups `group:<issuer>:<name>`, and `anonymous` (security contract, section 0).

Checks of requests, the broker's access decisions and the command line use this module. A pattern of principals is
matched against the caller's principal and groups. This module must not depend on how a caller proves its name.
"""

from __future__ import annotations

import re
from typing import Final

from fairlead_api.excerpts import shortened, shown
from fairlead_api.identifiers import is_name
from fairlead_api.problems import ProblemError

ANONYMOUS: Final = "anonymous"
"""Principal of a caller without a token."""
USER: Final = "user:"
"""Prefix of the principals of API tokens."""
CERTIFICATE: Final = "cert:"
"""Prefix of the principals of client certificates."""
ISSUER_NAME: Final = "[a-z][a-z0-9-]{0,30}"
"""Regular expression of the names of issuers; the principal of a signed token begins with the name of its issuer."""
ISSUER_NAME_RULE: Final = "a lower-case letter, then up to 30 lower-case letters, digits or '-'"
OTHER_SOURCES: Final = ("user", "group", "broker", "cert", ANONYMOUS)
"""Reserved first parts of principals, which are not allowed as names of issuers."""
PRINCIPAL_LENGTH_MAX: Final = 249
_PATTERN: Final = re.compile(r"[!-)+\-./0-~]{1,249}|[!-)+\-./0-~]{0,248}\*")
_PATTERN_RULE: Final = (
    "1 to 249 printable ASCII characters without space, comma and '*', optionally followed by one '*'"
)


def check_user(principal: str) -> str:
    """Return the principal of an API token, `user:<name>`, or raise `invalid_principal` (rule A12)."""
    if principal.startswith(USER) and is_name(principal.removeprefix(USER)):
        return principal
    raise _invalid(principal, "user:NAME, where NAME follows the rule of topic names")


def is_principal_pattern(text: str) -> bool:
    """Return whether a text is a pattern of principals and groups (rule Z5)."""
    return _PATTERN.fullmatch(text) is not None


def check_principal_pattern(pattern: str) -> str:
    """Return a pattern of principals and groups, or raise `invalid_principal` (rule Z5)."""
    if is_principal_pattern(pattern):
        return pattern
    raise _invalid(pattern, _PATTERN_RULE)


def _invalid(value: str, allowed: str) -> ProblemError:
    return ProblemError(
        "invalid_principal",
        f"principal {shown(value)} is not allowed; expected {allowed}",
        data={"value": shortened(value), "allowed": allowed},
    )
