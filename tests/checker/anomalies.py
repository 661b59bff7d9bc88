"""The anomalies that a history can show, and the workload settings that forbid each anomaly.

Anomalies have the names of Jepsen's Kafka workload (jepsen-io/jepsen, `jepsen.tests.kafka`), and A18 and A19 those of
Jepsen's search for cycles (jepsen-io/elle). Names that begin with B are Fairlead's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final


class Anomaly(StrEnum):
    """One way in which a history can be wrong."""

    INCONSISTENT_OFFSETS = "A1 inconsistent-offsets"
    LOST_WRITE = "A2 lost-write"
    UNSEEN = "A3 unseen"
    DUPLICATE = "A4 duplicate"
    ABORTED_READ = "A5 G1a aborted-read"
    PRECOMMITTED_READ = "A6 precommitted-read"
    POLL_SKIP = "A7 poll-skip"
    NONMONOTONIC_POLL = "A8 nonmonotonic-poll"
    INTERNAL_POLL = "A9 int-poll-skip"
    NONMONOTONIC_SEND = "A10 nonmonotonic-send"
    INTERNAL_SEND_SKIP = "A11 int-send-skip"
    WRITE_CYCLE = "A12 G0 write-cycle"
    INTERMEDIATE_READ = "A13 G1b intermediate-read"
    TORN_TRANSACTION = "A14 torn-transaction"
    CIRCULAR_FLOW = "A15 G1c circular-information-flow"
    REALTIME_LAG = "A16 realtime-lag"
    CONSUMED_TWICE = "A17 consume-count"
    READ_SKEW = "A18 G-single read-skew"
    ANTI_DEPENDENCY = "A19 G2 anti-dependency-cycle"
    OFFSET_ORDER = "B1 real-time-offset-order"
    PHANTOM = "B2 phantom"
    BACKWARD = "B3 high-watermark-back"
    COMMITTED_REGISTER = "B4 committed-offset-register"
    ACCOUNTING = "B5 at-least-once-accounting"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a workload, from the first line of its history."""

    acks: str = "all"
    """`all`, `1` or `0`."""
    idempotence: bool = True
    retries: bool = True
    """Whether a request without an answer was sent again with the same values."""
    in_flight: int = 1
    """Number of concurrent requests of one process to one key."""
    reader: str = "assign"
    """`assign`, or `subscribe` when members of a group may rebalance between any two polls."""
    delivery: str = "at_least_once"
    """When groups commit: `at_least_once` after processing, `at_most_once` before it, `exactly_once` together with it.
    """
    isolation: str = "read_committed"
    unclean: bool = False
    """Whether unclean elections were allowed."""
    leader_changes: bool = True
    """Whether leaders may have changed; the guarantee of acks=1 ends at a change of leader."""
    lag_seconds_max: float | None = None
    """Maximum lag of a reader in seconds after the faults are healed; None for no limit."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Settings:
        """Return the settings of a history's first line; an unknown name makes the history invalid."""
        given = {name: value for name, value in event.items() if name not in {"op", "type", "time"}}
        unknown = set(given) - {each.name for each in fields(cls)}
        assert not unknown, f"no setting is known as {sorted(unknown)}"
        return cls(**{**given, "acks": str(given.get("acks", "all"))})

    @property
    def keeps_acknowledged(self) -> bool:
        """Whether acknowledged records must stay at their offsets."""
        lasting = self.acks == "all" or (self.acks == "1" and not self.leader_changes)
        return lasting and not self.unclean


def _always(_settings: Settings) -> bool:
    return True


def _never(_settings: Settings) -> bool:
    return False


FORBIDDEN: Final[Mapping[Anomaly, Callable[[Settings], bool]]] = {
    # Polls are always compared with each other. An acknowledgement is compared with a poll only if its records must
    # stay at their offsets.
    Anomaly.INCONSISTENT_OFFSETS: lambda its: not its.unclean,
    Anomaly.LOST_WRITE: lambda its: its.keeps_acknowledged,
    Anomaly.UNSEEN: lambda its: its.keeps_acknowledged,
    Anomaly.DUPLICATE: lambda its: (its.idempotence or not its.retries) and not its.unclean,
    Anomaly.ABORTED_READ: _always,
    Anomaly.PRECOMMITTED_READ: lambda its: its.isolation == "read_committed",
    Anomaly.POLL_SKIP: lambda its: its.reader == "assign" and not its.unclean,
    Anomaly.NONMONOTONIC_POLL: lambda its: its.reader == "assign",
    Anomaly.INTERNAL_POLL: _always,
    Anomaly.NONMONOTONIC_SEND: lambda its: its.idempotence or its.in_flight == 1,
    # Writes of two transactions may be interleaved: this is counted, but is never an error.
    Anomaly.INTERNAL_SEND_SKIP: _never,
    # Two transactions may be in a different order in each partition, as in Kafka.
    Anomaly.WRITE_CYCLE: _never,
    Anomaly.INTERMEDIATE_READ: lambda its: its.isolation == "read_committed",
    Anomaly.TORN_TRANSACTION: lambda its: its.keeps_acknowledged,
    Anomaly.CIRCULAR_FLOW: lambda its: its.isolation == "read_committed",
    Anomaly.REALTIME_LAG: _always,
    Anomaly.CONSUMED_TWICE: lambda its: its.delivery != "at_least_once",
    # Two partitions may show a transaction at different moments, as in Kafka.
    Anomaly.READ_SKEW: _never,
    Anomaly.ANTI_DEPENDENCY: _never,
    Anomaly.OFFSET_ORDER: lambda its: its.keeps_acknowledged,
    Anomaly.PHANTOM: _always,
    Anomaly.BACKWARD: _always,
    Anomaly.COMMITTED_REGISTER: _always,
    Anomaly.ACCOUNTING: lambda its: its.delivery != "at_most_once",
}

EXAMPLES_MAX: Final = 5


class Findings:
    """The anomalies found so far: a count and a few examples of each."""

    def __init__(self) -> None:
        self.counts: dict[Anomaly, int] = {}
        self.examples: dict[Anomaly, list[str]] = {}

    def note(self, anomaly: Anomaly, what: str) -> None:
        """Count one case, and store it as an example while fewer than the maximum are stored."""
        count = self.counts[anomaly] = self.counts.get(anomaly, 0) + 1
        if count <= EXAMPLES_MAX:
            self.examples.setdefault(anomaly, []).append(what)

    def examples_of(self, anomaly: Anomaly) -> list[str]:
        """Return the examples, and the number of further cases."""
        more = self.counts[anomaly] - EXAMPLES_MAX
        return [*self.examples[anomaly], *([f"and {more} more"] if more > 0 else [])]
