"""The header `Authorization` of a request (rules A1, A3, A4, A7)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from fairlead_api.problems import ProblemError

HEADER_BYTES_MAX: Final = 8 << 10
SCHEME: Final = b"bearer"


class Refused(StrEnum):
    """Reason why a caller is not authenticated. Unknown and wrong tokens are refused with the same reason."""

    MISSING = "missing"
    MALFORMED = "malformed"
    EXPIRED = "expired"
    REFUSED = "refused"


_DETAILS: Final = {
    Refused.MALFORMED: "the header Authorization is not a single Bearer token; send one header with a token of: "
    "fairlead token create PRINCIPAL",
    Refused.EXPIRED: "the token has expired; create another with: fairlead token create PRINCIPAL",
    Refused.REFUSED: "the token is not valid in this cluster; create one with: fairlead token create PRINCIPAL",
}


def unauthenticated(reason: Refused) -> ProblemError:
    """Return the problem for a token that is not accepted."""
    return ProblemError("unauthenticated", _DETAILS[reason], data={"reason": reason})


def too_many_failures(wait_seconds: float) -> ProblemError:
    """Return the problem for a token that is not verified because its address sent too many refused tokens."""
    return ProblemError(
        "throttled",
        "this address sent too many tokens that were refused",
        retry_after_seconds=wait_seconds,
    )


def bearer_token(values: list[bytes]) -> str:
    """Return the token in the values of the header `Authorization`; at least one value is required.

    Raises `unauthenticated` for two headers, another scheme, a token that is empty or too long, and characters that are
    not allowed in a token.
    """
    if len(values) != 1 or len(values[0]) > HEADER_BYTES_MAX:
        raise unauthenticated(Refused.MALFORMED)
    scheme, _, token = values[0].partition(b" ")
    token = token.strip(b" ")
    if (
        scheme.lower() != SCHEME
        or not token
        or not token.isascii()
        or any(byte <= 32 or byte == 127 for byte in token)
    ):
        raise unauthenticated(Refused.MALFORMED)
    return token.decode("ascii")
