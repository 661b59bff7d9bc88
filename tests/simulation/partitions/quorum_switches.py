"""Rules of write quorums that can be dropped, in their order (docs/explanation/quorum.md).

Rules of the shells are dropped in the simulator's twins of the shells, and all other rules in the production code.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller import election, vacancies
from fairlead_broker.registry import quorum as quorum_rules
from fairlead_broker.replication import voters
from fairlead_broker.replication.follower import PartitionFollower
from fairlead_broker.replication.follower_progress import KnownFollower
from fairlead_broker.replication.quorum_leader import QuorumLeader
from partitions import guards
from partitions.broker import Broker
from partitions.following import Following
from partitions.leading import Leading
from partitions.switches import (
    _any_directory,
    _cut_to_high_watermark,
    _drop_at_once,
    _kept_since_entry,
    _kept_since_intact,
    _no,
    _progress_of_any_incarnation,
    _unguarded,
    _unknown_by_record,
    _yes,
)
from simulator.switches import Switch


def _of_vacancy_at_all(self: Broker, partition: int, item: Any, leader_epoch: int, revision: int) -> bool:
    return True


def _is_replica(self: QuorumLeader, broker: BrokerId, generation: int) -> bool:
    return broker in self._replicas


_promises_needed = quorum_rules.promises_needed


def _one_less(record: Any) -> int:
    return max(1, _promises_needed(record) - 1)


def _of_present_voters(record: Any) -> int:
    return max(1, len(record.quorum.voters) - record.quorum.write + 1)


def _all_answers(end: Any, counted: Any) -> int:
    return len(counted)


def _by_end_alone(end: Any, counted: Any) -> int:
    return sum(each.end.end_offset <= end.end_offset for each in counted.values())


def _anywhere(promise: Any, place: Any) -> bool:
    return True


def _leader_of_older_incarnations(self: Broker, record: Any) -> bool:
    return record.leader is not None and record.leader.broker == self.number


SWITCHES: Final = (
    Switch(
        "quorum-synced",
        "Q2 with durability=synced only synced offsets count",
        (KnownFollower, "counted", lambda self, durability: self.end_offset),
        (QuorumLeader, "_own_counted", lambda self: self._end_offset),
    ),
    Switch(
        "quorum-generation",
        "Q2 a report counts only if its generation is the one in the partition record",
        (QuorumLeader, "_is_generation", _is_replica),
    ),
    Switch(
        "quorum-entry",
        "Q2 a report counts only if it is from the incarnation of the voter's entry",
        (QuorumLeader, "_is_entry", _yes),
    ),
    Switch(
        "quorum-progress-incarnation",
        "Q2 a progress report counts only if it is from the incarnation of the replica's last fetch",
        (QuorumLeader, "_progress_counts", _progress_of_any_incarnation),
    ),
    Switch(
        "quorum-progress-reconciled",
        "Q2 a replica reports progress only after its log agrees with the leader's",
        (PartitionFollower, "_may_report", _yes),
    ),
    Switch(
        "quorum-own-epoch",
        "Q4 records of earlier epochs are committed only by a record of the leader's own epoch",
        (QuorumLeader, "_is_of_own_epoch", _yes),
    ),
    Switch(
        "quorum-new-voters",
        "Q4 while a change of voters is undecided, W of the new voters must have a record",
        (QuorumLeader, "_proposed", lambda self: ()),
    ),
    Switch(
        "quorum-old-voters",
        "Q4 while a change of voters is undecided, W of the stored voters must have a record",
        (QuorumLeader, "_stored_counts", lambda self: not self._proposed()),
    ),
    Switch(
        "quorum-unknown-outcome",
        "Q9 a partition record that looks unchanged does not prove that a change of voters failed",
        (Leading, "written_unknown", _unknown_by_record),
        shell=True,
    ),
    Switch(
        "quorum-promise",
        "Q6 a replica that answers the controller takes no part in an older epoch",
        (Broker, "takes_no_part", _of_vacancy_at_all),
        shell=True,
    ),
    Switch(
        "quorum-directory",
        "Q7 an answer counts only if it is from the directory in the partition record",
        (election, "registered_directory", _any_directory),
        (vacancies, "_is_place", _anywhere),
    ),
    Switch(
        "quorum-last-broker-epoch",
        "Q7 and Q12 an answer from an old copy of a disk does not count",
        (election, "kept_everything", _kept_since_intact),
        (Broker, "_is_older_than", _no),
    ),
    Switch(
        "quorum-intact-since",
        "Q7 unsynced records are trusted only if no restart since the entry may have lost bytes",
        (election, "kept_everything", _kept_since_entry),
    ),
    Switch(
        "quorum-promises",
        "Q8 R = N - W + 1 voters must answer before a leader is appointed",
        (quorum_rules, "promises_needed", _one_less),
    ),
    Switch(
        "quorum-fixed-size",
        "Q8 N does not shrink when a voter is gone",
        (quorum_rules, "promises_needed", _of_present_voters),
    ),
    Switch(
        "quorum-greatest",
        "Q8 the log of the appointed replica is not behind those of R answers",
        (vacancies, "_answers_not_ahead", _all_answers),
    ),
    Switch(
        "quorum-epoch-first",
        "Q8 logs are compared by epoch before offset",
        (vacancies, "_answers_not_ahead", _by_end_alone),
    ),
    Switch(
        "quorum-appointment-revision",
        "Q8 an appointment compares the revision of the record without a leader",
        (guards, "controller_sees_partition", _unguarded),
        shell=True,
    ),
    Switch(
        "quorum-voters-hold",
        "Q9 W of the new voters must have everything below the high watermark",
        (voters, "holds", _yes),
    ),
    Switch(
        "quorum-epoch-start",
        "Q9 W of the new voters must have everything below the start of the leader's epoch",
        (QuorumLeader, "_promised", lambda self: self._high_watermark),
    ),
    Switch(
        "quorum-leader-revision",
        "Q9 a leader's write compares the revision of the partition record",
        (guards, "leader_sees_partition", _unguarded),
        shell=True,
    ),
    Switch(
        "quorum-leave-first",
        "Q11 a replica gives up its vote before it drops bytes",
        (Broker, "leave_for_damage", _drop_at_once),
        shell=True,
    ),
    Switch(
        "quorum-truncate-by-epoch",
        "Q13 a follower never truncates by the high watermark",
        (Following, "cut_before_fetching", _cut_to_high_watermark),
    ),
    Switch(
        "quorum-incarnation",
        "Q3 a broker leads only in the incarnation that the partition record names",
        (Broker, "leads", _leader_of_older_incarnations),
        shell=True,
    ),
)
