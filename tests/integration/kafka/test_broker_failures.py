"""An idempotent producer of librdkafka while brokers of a cluster with etcd are restarted and killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_failures import FAULTS, LibrdkafkaProducer, is_kept, run_fault

from chaos_cluster import chaos_cluster

pytestmark = [pytest.mark.scenario, pytest.mark.etcd, pytest.mark.slow]


@pytest.mark.parametrize("fault", FAULTS)
async def test_acknowledged_records_are_stored_once(tmp_path: Path, fault: str) -> None:
    """A rolling restart and kills of leaders lose no acknowledged record, and no record is stored twice."""
    async with chaos_cluster(tmp_path, relayed=False, kafka=True) as cluster:
        figures = await run_fault(cluster, LibrdkafkaProducer, fault, rounds=2)

    assert is_kept(figures), figures
    assert figures["acknowledged"] == figures["stored"]
