"""Short test of `transaction_kills.py`: `make prove PROVE=transaction-kills` makes a hundred kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from transaction_kills import prove

FAULTS = ("commits_written_but_not_answered", "workers_killed", "zombies_with_a_successor", "drains")


@pytest.mark.etcd
async def test_each_order_has_one_result_whatever_is_killed(tmp_path: Path) -> None:
    """Each order has one result in both topics although brokers and programs are killed, paused and drained."""
    report = await prove(tmp_path, kills=2, seed=5, names=FAULTS)

    assert report["is_exactly_once"], report
    assert report["kills_between_write_and_answer"] == 1, "the broker was not killed before its answer"
    assert report["workers_that_ended_by"] == {"ProducerFencedError": 1}, report
