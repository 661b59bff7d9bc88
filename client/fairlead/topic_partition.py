"""A partition as users of the SDK write it.

The contract's own type asks for a `PartitionIndex`, which type checkers do not take a plain number for; users have
plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition by the name of its topic: `TopicPartition("flights", 3)`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Read as Kafka writes it: `flights-3`."""
        return f"{self.topic}-{self.partition}"
