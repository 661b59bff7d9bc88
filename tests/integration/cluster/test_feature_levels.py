"""Feature levels of running brokers of two releases, and a broker below the level of its cluster (proof V19)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cluster_kit import Cluster, until
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination import bootstrap
from fairlead_broker.coordination.bootstrap import FeatureLevelTooHigh
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.lifecycle import cluster_entry


async def test_the_level_rises_after_the_last_old_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A higher level is refused while an older broker is registered; an older broker cannot run at a higher level."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        level = cluster.any.feature_level
        for module in (bootstrap, cluster_entry):
            monkeypatch.setattr(module, "FEATURE_LEVEL", level + 1)
        await cluster.start(2)
        # Broker 1 imitates a broker of the first release, which registers no level.
        registered = json.loads(encode(cluster.any.metadata.brokers[BrokerId(1)].value))
        registered.pop("feature_level")
        put = Put(Keys("fairlead").broker(BrokerId(1)), json.dumps(registered).encode())
        seen = await cluster.store.transact((), (put,))
        two = cluster.broker(2)
        await two.entry.mirror.wait_for(seen.revision)
        with pytest.raises(ProblemError) as refused:
            await two.alter_cluster_config({"feature.level": level + 1})
        await cluster.stop(1)
        await until(lambda: BrokerId(1) not in two.metadata.brokers, "broker 1 is still registered")
        config = await two.alter_cluster_config({"feature.level": level + 1})

        assert (refused.value.code, refused.value.data["broker"]) == ("not_possible_now", 1)
        assert (config["feature.level"].value, two.feature_level) == (str(level + 1), level + 1)

        # A broker whose release supports less than the level neither starts nor keeps running.
        monkeypatch.setattr(bootstrap, "FEATURE_LEVEL", level)
        with pytest.raises(FeatureLevelTooHigh):
            await cluster.start(1)
        await two.entry.coordination.transact((), (Put(two.metadata.keys.cluster, _cluster(two)),))
        async with asyncio.timeout(30):
            failure = await cluster.brokers[2].wait_failed()

        assert isinstance(failure, FeatureLevelTooHigh)
    finally:
        await cluster.close()


def _cluster(broker: Broker) -> bytes:
    """Return the stored bytes of the cluster's record."""
    found = broker.metadata.cluster
    assert found is not None
    return encode(found.value)
