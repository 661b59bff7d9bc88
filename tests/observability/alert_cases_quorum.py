"""Cases of the alerts on partitions with a write quorum, for `alert_cases.py`."""

from __future__ import annotations

from typing import Final

from alert_series import WHERE, Case, of_broker, pair


def quorum(near: str, write: str, voters: str = "3+0x3") -> dict[str, str]:
    """Return the series of a partition with a write quorum."""
    values = {"near": near, "write": write, "voters": voters}
    return {
        of_broker(f"fairlead_quorum_{name}", topic="orders", partition="0"): each
        for name, each in values.items()
    }


QUORUM: Final[tuple[Case, ...]] = (
    *pair(
        "FairleadQuorumVacancies",
        3,
        {of_broker("fairlead_quorum_vacant_partitions"): "0 2 2 2"},
        "2 partitions with a write quorum of cluster main in shop have no leader, because too few voters have"
        " answered.",
        WHERE,
        {of_broker("fairlead_quorum_vacant_partitions"): "0 2 2 0"},
    ),
    *pair(
        "FairleadQuorumTooFewNear",
        3,
        quorum(near="3 1 1 1", write="2+0x3"),
        "1 partitions of cluster main in shop have fewer near voters than quorum.write.",
        WHERE,
        quorum(near="2+0x3", write="2+0x3"),
    ),
    *pair(
        "FairleadQuorumWithoutReserve",
        12,
        quorum(near="2+0x12", write="2+0x12", voters="3+0x12"),
        "1 partitions of cluster main in shop have had only quorum.write near voters for 10 minutes: the next failure"
        " stops their writes.",
        WHERE,
        # Two replicas of which both must store a record never have a reserve.
        quorum(near="2+0x12", write="2+0x12", voters="2+0x12"),
    ),
)
