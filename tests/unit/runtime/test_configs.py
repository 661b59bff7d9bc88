"""The effective configuration of this broker, as its partitions read it."""

from __future__ import annotations

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata, Versioned
from fairlead_broker.registry.records import ConfigRecord
from fairlead_broker.runtime.configs import REPLICA_LAG_TIME, Configs


def test_a_changed_value_is_read_and_an_unchanged_one_is_not_computed_again() -> None:
    """A value that is set on the broker applies at once, overrides start value and cluster, and is computed once."""
    metadata = ClusterMetadata(Keys("test"))
    configs = Configs(metadata, BrokerId(1), {REPLICA_LAG_TIME: "9000"})
    seen = [configs.replica_lag_seconds]
    metadata.cluster_config = stored("8000")
    seen.append(configs.replica_lag_seconds)
    metadata._broker_configs[BrokerId(1)] = stored("7000")
    seen.append(configs.replica_lag_seconds)
    computed = configs._own
    seen.append(configs.replica_lag_seconds)

    assert seen == [9.0, 9.0, 7.0, 7.0]
    assert configs._own is computed


def stored(value: str) -> Versioned[ConfigRecord]:
    """Return a stored configuration."""
    return Versioned(ConfigRecord(values={REPLICA_LAG_TIME: value}), Revision(1), Revision(1))
