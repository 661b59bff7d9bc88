"""Configurations of the cluster and of individual brokers, each in one key that is changed by compare-and-set.

The runtime of the broker that received the request calls this module. Every broker reads the changed configuration from
its mirror. The module must not know the meaning of a configuration key, except that it passes `feature.level` to
`feature_level`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from fairlead_api.configuration import ConfigInput, ConfigScope, merge_patch
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.feature_level import check_compaction, raised_level, taken_out
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import ConfigRecord, config_texts, encode
from fairlead_broker.registry.store_writes import Put, Transaction, absent, unchanged_since


class ConfigAdmin:
    """Changes to configurations by merge patches (null resets a key or all keys).

    Each method returns when the mirror shows the change. Every call may raise `ProblemError`: `invalid_config` before
    any write, `conflict`, `coordination_unavailable`.
    """

    def __init__(self, coordination: Coordination, mirror: Mirror) -> None:
        self._metadata = mirror.metadata
        self._runner = PlanRunner(coordination, mirror)

    async def alter_cluster(self, patch: Mapping[str, ConfigInput] | None) -> None:
        """Change the cluster's configuration."""
        key = self._metadata.keys.cluster_config
        wanted, rest = taken_out(patch)
        await self._alter(key, lambda: self._metadata.cluster_config, rest, ConfigScope.CLUSTER, wanted)

    async def alter_broker(self, broker: BrokerId, patch: Mapping[str, ConfigInput] | None) -> None:
        """Change a broker's configuration.

        Raises `broker_not_found` if the broker is neither registered nor configured.
        """
        self.check_broker(broker)
        await self.set_on_broker(broker, patch)

    async def set_on_broker(self, broker: BrokerId, patch: Mapping[str, ConfigInput] | None) -> None:
        """Change the configuration of a broker, which may be gone. The caller has checked that the broker exists."""
        key = self._metadata.keys.broker_config(broker)
        await self._alter(key, lambda: self._metadata.broker_config(broker), patch, ConfigScope.BROKER)

    def check_broker(self, broker: BrokerId) -> None:
        """Raise `broker_not_found` unless the broker is registered or has a configuration."""
        if broker not in self._metadata.brokers and self._metadata.broker_config(broker) is None:
            detail = f"no broker {broker} is registered"
            raise ProblemError("broker_not_found", detail, data={"broker": broker})

    async def _alter(
        self,
        key: str,
        stored: Callable[[], Versioned[ConfigRecord] | None],
        patch: Mapping[str, ConfigInput] | None,
        scope: ConfigScope,
        feature_level: int | None = None,
    ) -> None:
        def plan(_: int) -> Sequence[Transaction]:
            found = stored()
            record = ConfigRecord(values={}) if found is None else found.value
            before = config_texts(record.values)
            after = merge_patch(before, patch, scope)
            check_compaction(self._metadata, after)
            compares, puts = raised_level(self._metadata, feature_level)
            if after != before:
                compares += (absent(key) if found is None else unchanged_since(key, found.mod_revision),)
                puts += (Put(key, encode(msgspec.structs.replace(record, values={**after}))),)
            return (Transaction(compares, puts),) if puts else ()

        # `begin` stops after the first write that succeeds. A second plan would replace a value that another caller has
        # set since then.
        await self._runner.begin(plan)
