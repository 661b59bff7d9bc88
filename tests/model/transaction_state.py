"""State of the model of transactions: the coordination store, partitions, client instances and messages.

A state is a tuple of tuples, so that the search can hash it. The steps, the invariants and the worlds of the model use
this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

DATA: Final = 0
COMMIT: Final = 1
ABORT: Final = 2

IDLE: Final = 0
"""The instance has not started."""
PRODUCING: Final = 1
COMMITTING: Final = 2
ABORTING: Final = 3
DEAD: Final = 4
STARTING: Final = 5
"""The instance waits for its first transaction."""
READING: Final = 6
"""The instance has a transaction, and reads the committed offset."""


class Entry(NamedTuple):
    """A batch or a marker in the log of a partition. A marker has no sequence, input and instance."""

    kind: int
    name: int
    epoch: int
    sequence: int = 0
    input: int = -1
    instance: int = -1


class Part(NamedTuple):
    """A partition. `known` is the high watermark that the leader knows."""

    log: tuple[Entry, ...] = ()
    high_watermark: int = 0
    known: int = 0


class Ended(NamedTuple):
    """Newest decided transaction of a producer."""

    epoch: int = -1
    outcome: int = ABORT
    reason: str = ""


class Record(NamedTuple):
    """Record of a producer in the coordination store."""

    epoch: int
    ended: Ended = Ended()
    unfinished: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Epoch and unconfirmed partitions of each unfinished commit."""


class Group(NamedTuple):
    """The member of the group that may commit, and the committed offset."""

    owner: int = 0
    offset: int = 0


class Instance(NamedTuple):
    """A client: its transaction, its input, and the numbers of sent and acknowledged batches in each partition."""

    phase: int
    epoch: int
    input: int
    sent: tuple[int, ...]
    acked: tuple[int, ...]


class Produce(NamedTuple):
    """Request that appends a batch."""

    partition: int
    name: int
    epoch: int
    sequence: int
    input: int
    instance: int
    kind: str = "produce"


class Decide(NamedTuple):
    """Request that commits or aborts a transaction. An abort names no partitions and no input.

    The batches of a request that also commits are `Produce` messages of their own.
    """

    name: int
    epoch: int
    outcome: int
    instance: int
    named: tuple[int, ...] = ()
    input: int = -1
    stored: tuple[int, ...] = ()
    """Number of batches in each partition that must be stored before the commit; empty for a separate commit."""
    kind: str = "decide"


class End(NamedTuple):
    """Message that informs the leader of a partition about a commit."""

    partition: int
    name: int
    epoch: int
    kind: str = "end"


class Write(NamedTuple):
    """A compare-and-set on its way to the store."""

    name: int
    record: Record
    offset: int
    """Offset of the group that the write stores; -1: none."""
    is_fresh: bool
    """Whether the record is unchanged since the broker read it."""
    by: str
    """Sender of the write: `begin`, `commit`, `abort` or `timeout`."""
    instance: int = -1
    named: tuple[int, ...] = ()
    input: int = -1


class Decision(NamedTuple):
    """A decision that took effect."""

    name: int
    epoch: int
    outcome: int
    named: tuple[int, ...]
    input: int


Seen = tuple[int, int, int, int]
"""Name, epoch, sequence and input of a record that a reader of committed records got."""


class State(NamedTuple):
    """State of the whole model. A message is never used up: it may arrive late, again, or never."""

    records: tuple[Record, ...]
    group: Group
    parts: tuple[Part, ...]
    instances: tuple[Instance, ...]
    messages: frozenset[Produce | Decide | End]
    writes: tuple[Write, ...]
    leader_changes: int
    """Number of changes of leaders that remain."""
    crashes: int
    """Number of crashes of clients that remain."""
    aborts: int
    """Number of aborts by clients that remain."""
    decided: tuple[Decision, ...]
    seen: tuple[tuple[Seen, ...], ...]
    """Records that readers have seen, by partition."""


@dataclass(frozen=True)
class World:
    """Bounds of a search, and the rules that are left out."""

    name: str = ""
    inputs: int = 2
    batches: int = 1
    """Maximum number of batches of a transaction in a partition."""
    leader_changes: int = 1
    crashes: int = 0
    aborts: int = 0
    has_second: bool = True
    """Whether a second instance starts at any time, after which the first is a zombie."""
    has_group: bool = False
    """Whether each instance is a group member with its own name; otherwise both instances have the same name."""
    writes_max: int = 1
    """Maximum number of writes on their way to the store."""
    unfinished_max: int = 1
    has_timeout: bool = True
    commits_with_batches: bool = False
    """Whether a client may send its commit together with batches that are not acknowledged."""
    without: frozenset[str] = frozenset()
    partitions: int = 2
    partitions_min: int = 1
    """Minimum number of partitions of a transaction that is committed."""

    @property
    def zero(self) -> tuple[int, ...]:
        """Zero for each partition."""
        return (0,) * self.partitions

    def name_of(self, instance: int) -> int:
        """Return the producer name of an instance."""
        return instance if self.has_group else 0

    def initial(self) -> State:
        """Return the first state: the first instance has a transaction."""
        records = (Record(1), Record(0)) if self.has_group else (Record(1),)
        first = Instance(PRODUCING, 1, 0, self.zero, self.zero)
        second = Instance(IDLE, 0, 0, self.zero, self.zero)
        return State(
            records=records,
            group=Group(),
            parts=(Part(),) * self.partitions,
            instances=(first, second) if self.has_second else (first,),
            messages=frozenset(),
            writes=(),
            leader_changes=self.leader_changes,
            crashes=self.crashes,
            aborts=self.aborts,
            decided=(),
            seen=((),) * self.partitions,
        )
