"""Kinds of lost records that a query expected, and the messages for each kind.

The option `failOnDataLoss` decides whether the query fails with the message, or logs a warning and continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class LossKind(Enum):
    """Reason for missing records, and the reaction of a query that has `failOnDataLoss=false`."""

    LOG_START = ("records were deleted before they were read", "continues from the first available record")
    TOPIC_RECREATED = (
        "the topic was deleted and created again",
        "reads the new topic from its beginning",
    )
    TOPIC_GONE = ("the topic no longer exists, or is no longer read", "continues without it")
    LOG_TRUNCATED = (
        "the end of the log was lost, as after an unclean election",
        "continues where the log diverges from the log that was read",
    )

    def __init__(self, meaning: str, otherwise: str) -> None:
        self.meaning = meaning
        self.otherwise = otherwise


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss of records; `detail` contains the offsets."""

    kind: LossKind
    topic: str
    partition: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        return f"{place}: {self.kind.meaning}: {self.detail}"


class DataLoss(Exception):
    """Expected records are missing, and `failOnDataLoss` is true."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.losses = tuple(losses)
        super().__init__(self.losses)

    def __str__(self) -> str:
        kinds = dict.fromkeys(loss.kind.otherwise for loss in self.losses)
        return (
            f"{'; '.join(map(str, self.losses))}. With the option failOnDataLoss=false the query "
            f"{' and '.join(kinds)}; to start again, run the query with a new checkpoint."
        )
