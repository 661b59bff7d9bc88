"""The Arrow IPC message of a few records, laid out by hand.

Building arrays and running Arrow's writer costs 80 µs however few the records are, which is most of what a client
spends on a request with one of them. The bytes here are the same: buffers in order, each padded to eight bytes, and
the metadata that Arrow wrote for another message of the schema with its numbers replaced. Called by `batches`. Must
not know Arrow's library: it is given one message that it has written.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from fairlead_api.batch.arrow_message import PREFIX_BYTES, number_places
from fairlead_api.batch.header import Buffer

_ALIGNMENT: Final = 8
_PADDING: Final = tuple(bytes(-count % _ALIGNMENT) for count in range(_ALIGNMENT))
_NO_OFFSETS: Final = bytes(4)
"""The offsets of a column without rows."""


class MessageLayout:
    """Where the numbers stand in the metadata of messages of the schema. `template` is any such message."""

    __slots__ = ("_constants", "_metadata")

    def __init__(self, template: Buffer) -> None:
        """Take the metadata apart; the numbers must stand in the order in which Arrow writes them."""
        metadata, places = number_places(template)
        prefix = bytes(template[: PREFIX_BYTES + len(metadata)])
        form, constants, at = "<", [], 0
        for place, count in places:
            start = PREFIX_BYTES + place
            assert start >= at, "Arrow's writer orders buffers differently than assumed here"
            form += f"{start - at}s{count}q"
            constants.append(prefix[at:start])
            at = start + 8 * count
        self._metadata = struct.Struct(f"{form}{len(prefix) - at}s")
        self._constants = (*constants, prefix[at:])

    def message(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_us: Sequence[int]
    ) -> bytes:
        """Return the message of records without headers.

        Raises `struct.error` or `TypeError` for what the columns cannot hold.
        """
        count = len(values)
        key_bitmap, key_offsets, key_bytes, key_nulls = _binary(keys)
        value_bitmap, value_offsets, value_bytes, value_nulls = _binary(values)
        buffers = (
            *(key_bitmap, key_offsets, key_bytes),
            *(value_bitmap, value_offsets, value_bytes),
            *(b"", struct.pack(f"<{count}q", *timestamps_us)),
            *(bytes((count + 7) // 8), bytes(4 * (count + 1))),  # the headers: null, all of them
            *(b"", b"", _NO_OFFSETS, b"", b"", _NO_OFFSETS, b""),
        )
        parts: list[bytes] = [b""]
        places: list[int] = []
        at = 0
        for buffer in buffers:
            size = len(buffer)
            places += (at, size)
            if size:
                padding = _PADDING[size % _ALIGNMENT]
                parts += (buffer, padding)
                at += size + len(padding)
        nodes = (count, key_nulls, count, value_nulls, count, 0, count, count, 0, 0, 0, 0, 0, 0)
        start, second, third, fourth, stop = self._constants
        parts[0] = self._metadata.pack(start, at, second, count, third, *places, fourth, *nodes, stop)
        return b"".join(parts)


def _binary(items: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes, int]:
    """Return validity bitmap (none where nothing is null), offsets, bytes, and how many are null."""
    count, nulls, end, valid = len(items), 0, 0, 0
    offsets = [0]
    for number, item in enumerate(items):
        if item is None:
            nulls += 1
        else:
            end += len(item)
            valid |= 1 << number
        offsets.append(end)
    bitmap = valid.to_bytes((count + 7) // 8, "little") if nulls else b""
    return bitmap, struct.pack(f"<{count + 1}i", *offsets), b"".join(filter(None, items)), nulls
