from typing import TypeAlias

_Bytes: TypeAlias = bytes | bytearray | memoryview

def decode(
    records: _Bytes, count: int, base_timestamp_ms: int, now_us: int, room: int
) -> tuple[bytearray, tuple[int, ...], tuple[int, int, int, int], tuple[int, int]]: ...
def encode(
    body: _Bytes, places: tuple[int, ...], rows: int, headers: int, room: int
) -> tuple[bytearray, int]: ...
