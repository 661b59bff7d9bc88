"""Typed configuration values of the cluster, and the desired states of individual brokers.

The package `controlling` reads these values from the mirror for every decision of the controller. The module writes
nothing to the store.
"""

from __future__ import annotations

from fairlead_api.configuration import CLUSTER_KEYS, ConfigScope, ConfigValue, parse_value
from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.registry.metadata import ClusterMetadata, Versioned
from fairlead_broker.registry.records import BrokerState, ConfigRecord, config_texts

CORDONED = "cordoned"
DRAINING = "draining"


def cluster_value(metadata: ClusterMetadata, name: str) -> ConfigValue:
    """Return the cluster's value of a configuration key, or the default of the key."""
    stored = metadata.cluster_config
    texts = config_texts(stored.value.values) if stored else {}
    return parse_value(name, texts.get(name, CLUSTER_KEYS[name].default), ConfigScope.CLUSTER)


def cluster_number(metadata: ClusterMetadata, name: str) -> int:
    """Return the cluster's value of a numeric configuration key."""
    value = cluster_value(metadata, name)
    assert isinstance(value, int), f"{name} is a number"
    return value


def cordoned_brokers(metadata: ClusterMetadata) -> frozenset[BrokerId]:
    """Return the brokers that get no new replicas, including the draining brokers."""
    return _wanted(metadata, CORDONED) | draining_brokers(metadata)


def draining_brokers(metadata: ClusterMetadata) -> frozenset[BrokerId]:
    """Return the draining brokers, including brokers that are gone."""
    return _wanted(metadata, DRAINING)


def registered_states(metadata: ClusterMetadata) -> dict[BrokerId, BrokerState]:
    """Return the state of each registered broker.

    A broker is reported as draining as soon as the drain is requested, even before the broker has learned of it, so
    that the answer to the drain request shows the requested state.
    """
    draining = draining_brokers(metadata)
    return {broker: _state(each.value.state, broker in draining) for broker, each in metadata.brokers.items()}


def cluster_view(metadata: ClusterMetadata) -> ClusterView:
    """Return the brokers on which the controller's decisions are based. The mapping of brokers is kept up to date."""
    return ClusterView(
        brokers=metadata.brokers,
        cordoned=cordoned_brokers(metadata),
        draining=draining_brokers(metadata),
    )


def _state(registered: BrokerState, is_drained: bool) -> BrokerState:
    if registered is BrokerState.STOPPING:
        return registered
    return BrokerState.DRAINING if is_drained else BrokerState.RUNNING


def _wanted(metadata: ClusterMetadata, key: str) -> frozenset[BrokerId]:
    return frozenset(broker for broker, each in metadata.broker_configs.items() if _is_set(each, key))


def _is_set(config: Versioned[ConfigRecord], key: str) -> bool:
    return config_texts(config.value.values).get(key) == "true"
