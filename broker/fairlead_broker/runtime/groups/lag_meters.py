"""Metrics of the lag of coordinated groups.

The positions are requested for many groups at once, and the number of exported series is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from fairlead_api.identifiers import TopicIdPartition
from fairlead_broker.clock import Clock
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime.groups import lag as group_lag
from fairlead_broker.runtime.groups.coordinated_group import CoordinatedGroup
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.telemetry import Telemetry

PARTITIONS_MAX: Final = 10_000
"""Maximum number of group partitions for which a broker exports the lag; groups later in the alphabet are left out."""
GROUPS_AT_ONCE: Final = 20
"""Number of groups whose positions are requested together before the event loop runs other tasks."""
LAG_METRICS: Final = ("fairlead_group_lag_records", "fairlead_group_lag_seconds")


class GroupLagMeters:
    """Gauges of the lag, with values from the last requested positions."""

    def __init__(
        self,
        groups: Groups,
        positions: Positions,
        metadata: ClusterMetadata,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._groups = groups
        self._positions = positions
        self._metadata = metadata
        self._clock = clock
        self._metrics = [telemetry.metric(name) for name in LAG_METRICS]
        self._left_out = telemetry.metric("fairlead_group_lag_hidden_partitions")
        self._shown: set[tuple[str, str, str]] = set()

    async def show(self) -> None:
        """Request positions from leaders and export the lag; series of partitions without an answer are removed."""
        shown: set[tuple[str, str, str]] = set()
        groups = sorted(self._groups, key=lambda each: each.name)
        asked = left_out = 0
        for at in range(0, len(groups), GROUPS_AT_ONCE):
            parts = []
            for coordinated in groups[at : at + GROUPS_AT_ONCE]:
                partitions = group_lag.partitions_of(coordinated, self._metadata)
                if asked + len(partitions) > PARTITIONS_MAX:
                    left_out += len(partitions)
                else:
                    asked += len(partitions)
                    parts.append((coordinated, partitions))
            shown |= await self._show(parts)
        for labels in self._shown - shown:
            for metric in self._metrics:
                metric.remove(*labels)
        self._shown = shown
        self._left_out.set(left_out)

    async def _show(
        self, parts: Sequence[tuple[CoordinatedGroup, Sequence[TopicIdPartition]]]
    ) -> set[tuple[str, str, str]]:
        """Export the lag of some groups; return the labels of the exported series."""
        asked = [each for of_group in parts for each in group_lag.lag_asked(*of_group)]
        positions = iter(await self._positions.ask(asked))
        shown = set()
        for coordinated, partitions in parts:
            of_group = list(islice(positions, len(partitions)))
            answer = group_lag.lag_answer(coordinated, of_group, self._metadata, self._clock.now_us())
            for each in answer.lag:
                if each.lag_records is not None:
                    labels = (coordinated.name, each.topic, str(each.partition))
                    shown.add(labels)
                    for metric, value in zip(
                        self._metrics, (each.lag_records, each.lag_seconds), strict=True
                    ):
                        metric.labels(*labels).set(value)
        return shown
