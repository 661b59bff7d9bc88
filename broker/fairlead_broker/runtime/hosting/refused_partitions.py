"""Partitions whose replicas this broker stores but cannot serve, with the reasons.

Used by `replicas`, which opens the logs and starts the roles. A repeated reason is logged only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairlead_api.identifiers import TopicId, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.log import LogError, Shortage
from fairlead_broker.runtime import refusals
from fairlead_broker.telemetry import Log

OPEN_AGAIN_SECONDS: Final = 1.0
"""Number of seconds between attempts to open a log after a shortage of disk space or descriptors. No event announces
free space or descriptors."""


class RefusedPartitions:
    """Partitions that this broker refuses to serve, with the problem of each."""

    __slots__ = ("_log", "_look_again", "_problems")

    def __init__(self, look_again: Callable[[TopicId], None], log: Log) -> None:
        """`look_again` makes `replicas` compare a topic's partition records with its replicas again."""
        self._look_again = look_again
        self._log = log
        self._problems: dict[TopicIdPartition, ProblemError] = {}

    def __len__(self) -> int:
        return len(self._problems)

    def __contains__(self, key: TopicIdPartition) -> bool:
        return key in self._problems

    def why(self, key: TopicIdPartition) -> ProblemError | None:
        """Return the problem of a refused partition; None if the partition is not refused."""
        return self._problems.get(key)

    def refuse(self, key: TopicIdPartition, topic: str, error: LogError) -> None:
        """Record the problem of a partition; after a shortage, retry the partition later."""
        problem = refusals.from_log(error, topic, key.partition, writing=False)
        known, self._problems[key] = self._problems.get(key), problem
        if isinstance(error, Shortage):
            asyncio.get_running_loop().call_later(OPEN_AGAIN_SECONDS, self._look_again, key.topic_id)
        if known is None or known.detail != problem.detail:
            self._log.error(
                "partition cannot be opened",
                topic=topic,
                partition=key.partition,
                code=problem.code,
                reason=str(error),
            )

    def accept(self, key: TopicIdPartition) -> None:
        """Remove the problem of a partition that is now served or no longer assigned to this broker."""
        self._problems.pop(key, None)

    def forget_topic(self, topic_id: TopicId) -> None:
        """Remove the problems of a deleted topic."""
        self._problems = {key: why for key, why in self._problems.items() if key.topic_id != topic_id}
