"""Effective configuration of the cluster and of this broker, and the task that applies changes to it.

The configuration of topics is in `topic_views`. A value set on the broker takes precedence over a value in the broker's
settings, a value set on the cluster, and the default, in this order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from operator import is_not

from fairlead_api.configuration import (
    CLUSTER_KEYS,
    FEATURE_LEVEL_KEY,
    THROTTLED_RATE_KEY,
    ConfigEntry,
    ConfigInput,
    ConfigScope,
    ConfigValue,
    effective_config,
    parse_value,
)
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.telemetry import Log

RETRY_SECONDS = 1.0
AUTO_CREATE_TOPICS = "auto.create.topics.enable"
RETENTION_CHECK_INTERVAL = "log.retention.check.interval.ms"
TRANSACTION_TIMEOUT_MAX = "transaction.max.timeout.ms"
TRANSACTIONAL_ID_EXPIRATION = "transactional.id.expiration.ms"
CLEANER_BACKOFF = "log.cleaner.backoff.ms"
CLEANER_RATE = "log.cleaner.io.max.bytes.per.second"
REPLICA_LAG_TIME = "replica.lag.time.max.ms"


class Configs:
    """The effective configuration, read from the mirror at every call."""

    def __init__(
        self, metadata: ClusterMetadata, broker: BrokerId, own_settings: Mapping[str, ConfigInput]
    ) -> None:
        """`own_settings`: values with which the broker was started (`BrokerSettings.config_values`)."""
        self._metadata = metadata
        self._broker = broker
        self._own_settings = own_settings
        self._own: dict[str, ConfigEntry] = {}
        """Effective configuration of this broker; each partition reads the configuration when it gets a leader."""
        self._own_from: tuple[object, ...] = ()
        """Stored records from which `_own` was computed; a changed record is a new object."""

    def of_cluster(self) -> dict[str, ConfigEntry]:
        """Return every key that can be set on the cluster."""
        stored = dict(self._cluster())
        if self._metadata.cluster is not None:
            stored[FEATURE_LEVEL_KEY] = self._metadata.cluster.value.feature_level
        return effective_config(ConfigScope.CLUSTER, {ConfigScope.CLUSTER: stored})

    def of_broker(self, broker: BrokerId) -> dict[str, ConfigEntry]:
        """Return every key that can be set on a broker.

        This broker does not know the settings with which other brokers were started.
        """
        layers = {ConfigScope.BROKER: self._of(broker), ConfigScope.CLUSTER: self._cluster()}
        return effective_config(ConfigScope.BROKER, layers)

    @property
    def auto_create_topics(self) -> bool:
        """Whether producing to an unknown topic creates it."""
        return self._value(AUTO_CREATE_TOPICS) is True

    @property
    def retention_check_seconds(self) -> float:
        """Number of seconds between two checks for expired segments."""
        return self._seconds(RETENTION_CHECK_INTERVAL)

    @property
    def cleaner_backoff_seconds(self) -> float:
        """Number of seconds between two searches for a partition to be cleaned, as long as no cleaning is due."""
        return self._seconds(CLEANER_BACKOFF)

    @property
    def cleaner_bytes_per_second(self) -> float:
        """Maximum number of bytes per second that the cleaner reads and writes."""
        return self._seconds(CLEANER_RATE) * 1000

    @property
    def replica_lag_seconds(self) -> float:
        """Number of seconds after which a follower that has not caught up leaves the isr.

        A leader reads the value at the start of its leader epoch.
        """
        return self._seconds(REPLICA_LAG_TIME)

    @property
    def transaction_timeout_ms_max(self) -> int:
        """Maximum timeout of a transaction in milliseconds."""
        return int(self.of_cluster()[TRANSACTION_TIMEOUT_MAX].value)

    @property
    def transactional_id_expiration_us(self) -> int:
        """Idle time, in microseconds, after which a transactional id is forgotten."""
        return int(self.of_cluster()[TRANSACTIONAL_ID_EXPIRATION].value) * 1000

    @property
    def move_bytes_per_second(self) -> int | None:
        """Number of bytes per second that this broker copies for moves, or None if there is no limit."""
        text = self.of_broker(self._broker)[THROTTLED_RATE_KEY].value
        return None if text == CLUSTER_KEYS[THROTTLED_RATE_KEY].default else int(text)

    def _seconds(self, name: str) -> float:
        milliseconds = self._value(name)
        assert isinstance(milliseconds, int), "the key is a number"
        return milliseconds / 1000

    def _value(self, name: str) -> ConfigValue:
        stored = (self._metadata.cluster_config, self._metadata.broker_config(self._broker))
        if not self._own or any(map(is_not, stored, self._own_from)):
            self._own, self._own_from = self.of_broker(self._broker), stored
        return parse_value(name, self._own[name].value, ConfigScope.BROKER)

    def _cluster(self) -> Mapping[str, ConfigInput]:
        found = self._metadata.cluster_config
        return found.value.values if found else {}

    def _of(self, broker: BrokerId) -> Mapping[str, ConfigInput]:
        found = self._metadata.broker_config(broker)
        stored = found.value.values if found else {}
        return {**self._own_settings, **stored} if broker == self._broker else stored


def differences(
    before: Mapping[str, ConfigEntry], after: Mapping[str, ConfigEntry]
) -> dict[str, dict[str, object]]:
    """Return the old and the new value of each key whose value has changed, for the audit log."""
    return {
        name: {"old": before[name].value, "new": entry.value}
        for name, entry in after.items()
        if name in before and before[name].value != entry.value
    }


class ClusterConfigFollower:
    """Task that updates partition records when this or another broker changes the cluster's configuration."""

    def __init__(self, topic_admin: TopicAdmin, log: Log) -> None:
        self._topic_admin = topic_admin
        self._log = log
        self._changed = asyncio.Event()

    def config_changed(self) -> None:
        """Record that the mirror's configuration has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Apply each change to the configuration until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._topic_admin.follow_cluster_config()
            except ProblemError as problem:
                self._log.warning("cluster configuration not applied yet", reason=problem.detail)
                # The store is unavailable, or another broker is writing. No event signals when to retry.
                await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251
                self._changed.set()
