"""Addresses inside the console, to which a sign-in returns. Pure."""

from __future__ import annotations

import re
from typing import Final

_LOCAL: Final = re.compile(r"/(?![/\\])[\x21-\x7e]*")
_PATH_LETTERS_MAX: Final = 2000


def local_path(text: str) -> str:
    r"""Return the text if it is a path of the console, else `/`.

    Browsers read `//host` and `/\host` as addresses of other servers, and leave out control characters.
    """
    is_local = _LOCAL.fullmatch(text) and "\\" not in text and len(text) <= _PATH_LETTERS_MAX
    return text if is_local else "/"
