"""The payload that fits after a refusal, and the positions at which a batch is split."""

from __future__ import annotations

import pytest

from fairlead.producing.fitting import BATCH_BYTES_MIN, OVERHEAD_BYTES, cuts, fitting_bytes
from fairlead_api.batch.batches import encode_records
from fairlead_api.batch.header import Codec


def test_the_payload_follows_from_what_the_batch_became() -> None:
    """The fitting payload is computed from the encoded size, with a tenth in reserve for less compressible records."""
    assert fitting_bytes(100_000, 90_000 + OVERHEAD_BYTES, 45_000 + OVERHEAD_BYTES) == 45_000
    assert fitting_bytes(10, 200_000, 20_000) == 1


@pytest.mark.parametrize(("encoded", "limit"), [(900, 1000), (0, 64 * 2**20), (5000, 2 * OVERHEAD_BYTES - 1)])
def test_a_limit_that_says_nothing_halves_the_batch(encoded: int, limit: int) -> None:
    """A batch is halved if the exceeded limit applies to a different size, such as the decompressed size."""
    assert fitting_bytes(1001, encoded, limit) == 500
    assert fitting_bytes(1, encoded, limit) == 1


def test_no_batch_is_smaller_than_the_least() -> None:
    """No payload fits a limit below the size of the smallest possible batch."""
    sizes = {codec: encode_records([b""], None, [1], codec).nbytes for codec in Codec}

    assert min(sizes.values()) >= BATCH_BYTES_MIN
    assert sizes[Codec.NONE] <= OVERHEAD_BYTES
    assert fitting_bytes(1000, 1000, BATCH_BYTES_MIN - 1) is None


@pytest.mark.parametrize(
    ("sizes", "places"),
    [([], []), ([9], []), ([5, 5, 5], [2]), ([11, 1, 1], [1]), ([1, 11, 1], [1, 2]), ([6, 6, 6], [1, 2])],
)
def test_pieces_are_full_or_one_record(sizes: list[int], places: list[int]) -> None:
    """A batch is split into pieces of at most the given size, or of a single larger record."""
    assert cuts(sizes, 10) == places
