"""State of the model of quorum replication: the record of one partition, brokers with their disks, and pending puts.

A state is a tuple of tuples, so that the search can hash it. `quorum_rules` changes states, `quorum_steps` yields the
steps, and `quorum_model` contains the invariants and the worlds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

KILL: Final = "kill"
"""The process ends; the page cache stays."""
POWER: Final = "power"
"""The machine loses its unsynced bytes."""
WIPE: Final = "wipe"
"""The broker gets an empty disk."""
ROLL: Final = "roll"
"""The disk is replaced by an old copy."""
LEASE: Final = "lease"
"""The lease of a running broker ends."""
DAMAGE: Final = "damage"
MOVE: Final = "move"
"""The controller takes the leadership from a live leader."""
REASSIGN: Final = "reassign"
APPEND: Final = "append"


class Entry(NamedTuple):
    """A record in a log. Value 0 is the batch that begins a leader epoch."""

    epoch: int
    value: int


Log = tuple[Entry, ...]


class Place(NamedTuple):
    """Directory and generation of a replica."""

    directory: int
    generation: int


class Voter(NamedTuple):
    """A broker in one incarnation: a voter, or the leader."""

    broker: int
    epoch: int


class Record(NamedTuple):
    """Record of the partition. A record without a leader is a vacancy."""

    leader: Voter | None
    epoch: int
    replicas: tuple[Place | None, ...]
    adding: int
    """Broker that a reassignment adds, or -1."""
    removing: int
    voters: tuple[Voter, ...]
    write: int


class Registration(NamedTuple):
    """Registration of a broker."""

    epoch: int
    directory: int
    last_epoch: int
    """Last incarnation that the directory has stored."""
    intact_since: int


class Term(NamedTuple):
    """Leadership of a broker, with the offset at which its epoch starts in the log."""

    epoch: int
    start: int


class Proposal(NamedTuple):
    """A leader's put whose outcome is not yet known, or that the store has refused."""

    record: Record
    is_refused: bool


class Report(NamedTuple):
    """What a follower has reported to a leader."""

    epoch: int
    end: int
    synced: int
    place: Place


class LateReport(NamedTuple):
    """A report of a synced offset that is in transit."""

    leader_epoch: int
    epoch: int
    synced: int
    generation: int


class Broker(NamedTuple):
    """Disk and memory of a broker."""

    is_up: bool
    epoch: int
    log: Log
    synced: int
    high_watermark: int
    behind: int
    """Number of records by which the mirror is behind the store."""
    term: Term | None
    proposal: Proposal | None
    reports: tuple[Report | None, ...]
    directory: int
    last_epoch: int
    is_marked: bool
    """Whether the page cache survived the last stop."""
    intact_since: int
    is_reconciled: bool
    """Whether a leader of the mirror's epoch has found no divergence."""
    generation: int
    late_report: LateReport | None = None
    old_log: Log = ()
    """Log at the end of the previous incarnation, in worlds with old copies."""


class Put(NamedTuple):
    """A put of a leader on its way to the store."""

    sender: Voter
    record: Record
    added: tuple[Voter, ...]


class Plan(NamedTuple):
    """A put of a slow controller."""

    record: Record
    appointee: Voter | None
    is_fresh: bool


class Answer(NamedTuple):
    """Answer of a broker to a request for its log end, given in the epoch of the vacancy."""

    epoch: int
    generation: int
    place: tuple[int, int]
    """Last leader epoch and end offset."""


Budget = tuple[tuple[str, int], ...]


class State(NamedTuple):
    """State of the whole model."""

    records: tuple[Record, ...]
    """Records from the oldest one that a mirror shows to the current one."""
    registered: tuple[Registration | None, ...]
    brokers: tuple[Broker, ...]
    puts: tuple[Put, ...]
    plan: Plan | None
    answers: tuple[Answer | None, ...]
    left: Budget
    """Numbers of faults and new work that remain."""
    committed: Log
    """Records that were below a high watermark."""
    writers: tuple[int, ...]
    """Broker that appended in each leader epoch, or -1."""


@dataclass(frozen=True)
class World:
    """Bounds of a search, and the rules that are left out or interpreted in an unsafe way."""

    brokers: int = 3
    replicas: int = 3
    write: int = 2
    changed_write: int | None = None
    """Value to which `quorum.write` is changed."""
    is_synced: bool = True
    epoch_max: int = 3
    appends: int = 1
    faults: Budget = ()
    has_late_puts: bool = False
    """Whether puts of leaders arrive late or never."""
    has_slow_controller: bool = False
    has_late_reports: bool = False
    has_small_fetches: bool = False
    """Whether answers to fetches are cut or lost."""
    is_live: bool = False
    """Whether the search also proves that every state leads back to a full quorum."""
    behind_max: int = 2
    without: frozenset[str] = frozenset()

    def initial(self) -> State:
        """Return the first state: broker 0 leads, and every replica has the first batch."""
        ids = range(self.brokers)
        first = (Entry(1, 0),)
        record = Record(
            Voter(0, 1),
            1,
            tuple(Place(1, 0) if broker < self.replicas else None for broker in ids),
            -1,
            -1,
            tuple(Voter(broker, 1) for broker in range(self.replicas)),
            self.write,
        )
        nothing: tuple[None, ...] = (None,) * self.brokers
        reported = tuple(Report(1, 1, 1, Place(1, 0)) if 0 < each < self.replicas else None for each in ids)
        brokers = tuple(
            Broker(
                is_up=True,
                epoch=1,
                log=first if broker < self.replicas else (),
                synced=int(broker < self.replicas),
                high_watermark=int(broker < self.replicas),
                behind=0,
                term=Term(1, 0) if broker == 0 else None,
                proposal=None,
                reports=reported if broker == 0 else nothing,
                directory=1,
                last_epoch=1,
                is_marked=False,
                intact_since=1,
                is_reconciled=0 < broker < self.replicas,
                generation=0,
            )
            for broker in ids
        )
        return State(
            (record,),
            tuple(Registration(1, 1, 1, 1) for _ in ids),
            brokers,
            (),
            None,
            nothing,
            ((APPEND, self.appends), *self.faults),
            first,
            (-1, 0, *(-1,) * (self.epoch_max - 1)),
        )


def members(record: Record) -> list[int]:
    """Return the brokers that make up N: the replicas without the replica that is being added."""
    return [broker for broker, place in enumerate(record.replicas) if place and broker != record.adding]


def promises_needed(record: Record) -> int:
    """Return R: the number of voters that must answer before a leader is appointed."""
    return len(members(record)) - record.write + 1


def place_of(log: Log) -> tuple[int, int]:
    """Return the last leader epoch and the end of a log."""
    return (log[-1].epoch if log else 0, len(log))
