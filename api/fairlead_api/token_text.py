"""Text of an API token: `flt_<id>_<secret><check>` (rules A10 and A11).

The broker that creates a token composes the text from random characters; all brokers parse the texts that callers send.
The check of six characters detects typing errors without a lookup, and programs that search for leaked secrets
recognise the form. This module must not generate random characters.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

PREFIX: Final = "flt_"
ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Characters of id, secret and check: base62."""
ID_LENGTH: Final = 12
SECRET_LENGTH: Final = 43
"""Length of a secret: 43 characters of base62 have 256 bits, so that SHA-256 without a salt is enough."""
CHECK_LENGTH: Final = 6
_PAIRS: Final = tuple(first + second for first in ALPHABET for second in ALPHABET)
_TEXT: Final = re.compile(
    rf"flt_(?P<id>[0-9A-Za-z]{{{ID_LENGTH}}})_(?P<secret>[0-9A-Za-z]{{{SECRET_LENGTH}}})"
    rf"(?P<check>[0-9A-Za-z]{{{CHECK_LENGTH}}})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class TokenText:
    """Id and secret of an API token. The representation hides the secret."""

    token_id: str
    secret: str

    def __repr__(self) -> str:
        """Return the id of the token, without the secret."""
        return f"TokenText({self.token_id!r}, ...)"

    @property
    def text(self) -> str:
        """Text that the caller sends."""
        body = f"{PREFIX}{self.token_id}_{self.secret}"
        return body + _check(body)

    @property
    def secret_sha256(self) -> str:
        """SHA-256 of the secret in lower-case hexadecimal digits, which brokers store."""
        return sha256(self.secret.encode()).hexdigest()


def parse_token(text: str) -> TokenText | None:
    """Return the parts of a token's text, or None if the form or the check is wrong."""
    found = _TEXT.fullmatch(text)
    if found is None or _check(text[:-CHECK_LENGTH]) != found["check"]:
        return None
    return TokenText(found["id"], found["secret"])


def is_token_id(text: str) -> bool:
    """Return whether a text has the form of a token's id."""
    return len(text) == ID_LENGTH and all(character in ALPHABET for character in text)


def _check(body: str) -> str:
    # The CRC-32 as six digits of base 62. Three divisions by 62 * 62 take less time than six divisions by 62, and a
    # broker checks every unknown token.
    number, low = divmod(zlib.crc32(body.encode()), len(_PAIRS))
    high, middle = divmod(number, len(_PAIRS))
    return _PAIRS[high] + _PAIRS[middle] + _PAIRS[low]
