"""List of all boards."""

from __future__ import annotations

from typing import Final

from boards import brokers, cluster, groups, operator, spark, topics
from boards.vocabulary import Board

BOARDS: Final[tuple[Board, ...]] = (
    cluster.BOARD,
    brokers.BOARD,
    topics.BOARD,
    groups.BOARD,
    operator.BOARD,
    spark.BOARD,
)
