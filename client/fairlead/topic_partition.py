"""The partition type in the public interface of the SDK, with the plain integers that users pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition, identified by topic name and index: `TopicPartition("flights", 3)`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the partition in Kafka's notation: `flights-3`."""
        return f"{self.topic}-{self.partition}"
