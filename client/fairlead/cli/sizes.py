"""Numbers of bytes in the options of commands, such as `10MiB`."""

from __future__ import annotations

import re
from typing import Final

from fairlead.cli.session import fail_usage

_SIZE: Final = re.compile(r"(\d+)(|[KMGT]iB|[kMGT]B|B)")
_UNITS: Final = {
    "": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 1 << 10, "MiB": 1 << 20,
    "GiB": 1 << 30, "TiB": 1 << 40,
}  # fmt: skip


def parse_size(text: str | None) -> int | None:
    """Return a number of bytes, or None without a text; end the command if the text is not a size."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        fail_usage(f"{text!r} is not a size, such as 500000, 100kB or 10MiB")
    return int(found[1]) * _UNITS[found[2]]
