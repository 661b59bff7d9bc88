"""The partitions of one topic as a producer sees them, and whose turn it is for records without a key.

Pure: the first turn is given, the picture of the cluster is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fairlead.connection.metadata import Picture
from fairlead.producing.accumulator import PartitionQueue

QueueOf: TypeAlias = Callable[[str, int], PartitionQueue]
"""Finds the one queue of a partition, by topic and index."""


class TopicRoute:
    """The queues of a topic.

    Records without a key stick to one partition for a batch, then move on: batches stay large and partitions stay
    even.
    """

    __slots__ = ("_queue_of", "queues", "sticky", "topic", "topic_id")

    def __init__(
        self,
        topic: str,
        partition_count: int,
        chance: float,
        queue_of: QueueOf = PartitionQueue,
        topic_id: str | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._queue_of = queue_of
        self.queues: list[PartitionQueue] = []
        self.grow(partition_count)
        # Many producers that start together must not all begin at partition 0.
        self.sticky = self.queues[int(chance * partition_count)]

    def holds(self, partition: int) -> bool:
        """Whether the topic has the partition."""
        return 0 <= partition < len(self.queues)

    def grow(self, partition_count: int) -> None:
        """Take new partitions in; they never go away, but with their topic."""
        for index in range(len(self.queues), partition_count):
            queue = self._queue_of(self.topic, index)
            queue.topic_id = self.topic_id
            self.queues.append(queue)

    def advance(self, picture: Picture) -> PartitionQueue:
        """Move the turn to the next partition that has a leader, or just the next while none has."""
        count = len(self.queues)
        following = [self.queues[(self.sticky.partition + step) % count] for step in range(1, count + 1)]
        led = (queue for queue in following if picture.leader(self.topic, queue.partition) is not None)
        self.sticky = next(led, following[0])
        return self.sticky
