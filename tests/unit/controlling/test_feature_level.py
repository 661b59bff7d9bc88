"""A call raises the cluster's feature level if every broker supports the new level, and never lowers it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.configs import ConfigAdmin
from fairlead_broker.registry.records import ClusterRecord, encode
from fairlead_broker.registry.store_writes import Put

ONE, TWO = BrokerId(1), BrokerId(2)


@pytest.fixture
async def configs(life: Any, kit: Any) -> ConfigAdmin:
    """Return configuration in a store whose cluster is at level 1 and whose only broker supports level 3."""
    record = ClusterRecord(cluster_id="test", feature_level=1, created_us=0)
    own = msgspec.structs.replace(kit.registration(), feature_level=3)
    keys = life.mirror.metadata.keys
    await write(life, **{keys.cluster: encode(record), keys.broker(ONE): encode(own)})
    return ConfigAdmin(life.coordination, life.mirror)


async def write(life: Any, **values: bytes) -> None:
    """Put values into the store and wait until the mirror shows them."""
    done = await life.coordination.transact((), tuple(Put(key, value) for key, value in values.items()))
    await life.mirror.wait_for(done.revision)


def level_of(life: Any) -> int:
    """Return the cluster's feature level in the mirror."""
    return int(life.mirror.metadata.cluster.value.feature_level)


async def test_a_call_raises_the_level_with_the_rest_of_the_patch(life: Any, configs: ConfigAdmin) -> None:
    """A patch that contains a level changes the cluster's record and stores the patch's other keys at one revision."""
    await configs.alter_cluster({"feature.level": "3", "num.partitions": 4})
    metadata = life.mirror.metadata

    assert level_of(life) == 3
    assert metadata.cluster_config.value.values == {"num.partitions": "4"}
    assert metadata.cluster.mod_revision == metadata.cluster_config.mod_revision


async def test_a_registration_without_a_level_supports_level_one(
    life: Any, kit: Any, configs: ConfigAdmin
) -> None:
    """A broker whose release registers no feature level prevents level 2.

    The refusal of a feature level names the broker that does not support the level, and nothing is written.
    """
    old = {
        key: value for key, value in json.loads(encode(kit.registration())).items() if key != "feature_level"
    }
    await write(life, **{life.mirror.metadata.keys.broker(TWO): json.dumps(old).encode()})
    with pytest.raises(ProblemError) as refused:
        await configs.alter_cluster({"feature.level": 2, "num.partitions": 4})

    assert (refused.value.code, refused.value.data["broker"]) == ("not_possible_now", TWO)
    assert (level_of(life), life.mirror.metadata.cluster_config) == (1, None)


async def test_the_level_is_never_lowered(life: Any, configs: ConfigAdmin) -> None:
    """A lower level is refused, null is invalid, the current level changes nothing, and a reset keeps the level."""
    await configs.alter_cluster({"feature.level": 2})
    codes = []
    for value in (1, None, 0, "x"):
        with pytest.raises(ProblemError) as refused:
            await configs.alter_cluster({"feature.level": value})
        codes.append(refused.value.code)
    before = life.mirror.metadata.revision
    await configs.alter_cluster({"feature.level": 2})
    await configs.alter_cluster(None)

    assert codes == ["not_possible_now", "invalid_config", "invalid_config", "invalid_config"]
    assert (level_of(life), life.mirror.metadata.revision) == (2, before)
