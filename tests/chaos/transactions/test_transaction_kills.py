"""Short test of `transaction_kills.py`: `make prove PROVE=transaction-kills` makes 300 kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from transaction_kills import prove

FAULTS = (
    "commits_written_but_not_answered", "workers_killed", "zombies_with_a_successor", "drains", "partitions_moved",
    "topics_deleted_inside", "records_deleted_inside", "topics_grown_inside",
)  # fmt: skip
DELAY_SECONDS_MAX = 5.0
"""Maximum delay of a late call, which is longer than the timeout of a transaction in `make prove`."""


@pytest.mark.etcd
async def test_each_order_has_one_result_whatever_is_killed(tmp_path: Path) -> None:
    """Each order has one result in both topics although brokers and programs are killed, paused and drained."""
    report = await prove(tmp_path, 2, 5, FAULTS, DELAY_SECONDS_MAX)

    assert report["is_exactly_once"], report
    assert report["visits"] > 0, report
    assert report["transactions_with_late_calls"] > 10, report
    assert report["plain"]["transactions_ok"] > 10, report
    assert report["plain"]["commits_with_batches"] > 0, report
    # A paused program that had no open transaction may begin one and fence its successor, which starts again.
    assert set(report["workers_that_ended_by"]) == {"ProducerFencedError"}, report
