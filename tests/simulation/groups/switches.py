"""Rules of groups that can be dropped, in the order of the protocol's sections.

Rules of the shells (the code that runs the pure packages) are dropped in the simulator's twins of the shells. Rules of
the pure package and of the SDK's state machine of a member are dropped in the production code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from fairlead.group.member import GroupMember, HeartbeatAnswered
from fairlead_broker.groups import JOIN_EPOCH, Heartbeat, rules
from fairlead_broker.groups.holdings import Holding, is_apart
from fairlead_broker.registry.group_records import MemberRecord
from groups import guards
from groups.broker import Broker
from groups.coordinator import Coordinator
from groups.keys import group_items
from groups.messages import Request
from simulator.switches import Switch

READ_BEFORE_SECONDS: Final = 0.4
"""Seconds by which a coordinator without the rule reads the group before claiming it, instead of afterwards."""

# -- claims and writes


def _doubt_is_failure(coordinator: Coordinator) -> None:
    coordinator._in_round = []
    coordinator._busy = False
    coordinator.wake()


def _doubt_keeps_claim(coordinator: Coordinator) -> None:
    coordinator.entries = {}
    coordinator.load()


_claim = Coordinator.claim
_send = Coordinator.send
_write_offsets = Coordinator.write_offsets


def _claim_after_read(self: Coordinator, found: Any) -> None:
    store = self._world.store

    def listed(items: Any) -> None:
        self.load = lambda: self.loaded(items)  # type: ignore[method-assign]
        self.broker.after(READ_BEFORE_SECONDS, _claim, self, found)

    self.broker.ask_store(lambda: group_items(store, self.name), listed)


def _send_after_answers(self: Coordinator, turn: Any, requests: list[Request], portions: Any) -> None:
    self._replied(turn, requests)
    _send(self, turn, [], portions)


def _stand_without_answers(self: Coordinator, turn: Any, _: list[Request]) -> None:
    assert self.group is not None, "loaded"
    self.group.commit(turn)
    self._busy = False
    self._commit_offsets()


def _holder_is_registered(self: Broker, record: Any) -> bool:
    return record.broker in self.mirror.brokers


def _write_offsets_beside(self: Coordinator, commits: list[Request]) -> None:
    _write_offsets(self, commits)
    self._busy = False


# -- rules of the pure package


def _has_released_in_any_epoch(partitions: Holding, record: MemberRecord, heartbeat: Heartbeat) -> bool:
    return heartbeat.member_epoch == JOIN_EPOCH or (
        heartbeat.owned is not None and is_apart(heartbeat.owned, partitions)
    )


# -- members

_step = GroupMember.step
_drop = GroupMember._drop
_request = GroupMember._request


def _step_on_late_answers(self: GroupMember, event: Any, now: float) -> Any:
    if isinstance(event, HeartbeatAnswered) and self._number:
        self._under_way = True
        event = replace(event, number=self._number)
    return _step(self, event, now)


def _drop_nothing(self: GroupMember, error: Any, actions: Any) -> None:
    held = self.held
    _drop(self, error, [])
    self.held = held


def _request_without_revoked(self: GroupMember) -> Any:
    held, revoking = self.held, self._revoking or {}
    self.held = {place: topic_id for place, topic_id in held.items() if place not in revoking}
    try:
        return _request(self)
    finally:
        self.held = held


SWITCHES: Final = (
    Switch(
        "claim-compare",
        "5.1 a coordinator's write compares its claim of the group",
        (guards, "claimed", lambda group, revision: ()),
    ),
    Switch(
        "claim-life",
        "5.1 a claim lasts as long as its holder's incarnation",
        (Broker, "counts", _holder_is_registered),
    ),
    Switch(
        "load-behind-claim",
        "5.1 a coordinator reads a group only after it has claimed the group",
        (Coordinator, "claim", _claim_after_read),
    ),
    Switch(
        "unknown-outcome",
        "5.1 a write without an answer is not treated as failed",
        (guards, "in_doubt", _doubt_is_failure),
    ),
    Switch(
        "new-claim",
        "5.1 after a write without an answer the group is claimed again",
        (guards, "in_doubt", _doubt_keeps_claim),
    ),
    Switch(
        "answer-after-write",
        "5.1 a request is answered only after its write",
        (Coordinator, "send", _send_after_answers),
        (Coordinator, "stands", _stand_without_answers),
    ),
    Switch(
        "answer-with-lease",
        "5.1 a coordinator whose lease is in doubt answers nothing",
        (guards, "may_answer", lambda broker: True),
    ),
    Switch(
        "full-sessions",
        "5.2 after a take-over, the sessions of members restart with their full time",
        (guards, "sessions_begin", lambda coordinator: 0.0),
    ),
    Switch(
        "member-epoch",
        "5.3 a heartbeat counts only if it has the member's epoch",
        (rules, "check_member_epoch", lambda record, heartbeat: None),
        (rules, "has_released", _has_released_in_any_epoch),
    ),
    Switch(
        "released",
        "5.2 a partition counts as released only when its member says so",
        (rules, "has_released", lambda partitions, record, heartbeat: True),
    ),
    Switch(
        "free",
        "5.2 a release is stored before the partition is granted again",
        (rules, "is_free", lambda place, member_id, owners, granted: True),
    ),
    Switch(
        "sessions-end",
        "5.2 a silent member is removed when its session ends",
        (rules, "session_is_over", lambda ends_at, now: False),
    ),
    Switch(
        "revocations-end",
        "5.2 a revoked partition is taken away when the rebalance timeout ends",
        (rules, "revocation_is_overdue", lambda ends_at, now: False),
    ),
    Switch(
        "instance-fenced",
        "5.3 a static member that sends heartbeats cannot be replaced",
        (rules, "may_take_place", lambda holder, heartbeats_missed: True),
    ),
    Switch(
        "instance-returns",
        "5.3 a returning static member replaces its earlier run",
        (rules, "may_take_place", lambda holder, heartbeats_missed: False),
    ),
    Switch(
        "commit-epoch",
        "5.4 a commit is accepted only in the member's epoch, and only for a partition that the member has",
        (rules, "check_commit_epoch", lambda member_id, record, member_epoch: None),
        (rules, "may_commit_partition", lambda place, member_id, owners: True),
    ),
    Switch(
        "commit-member",
        "5.4 a commit is accepted only from a member",
        (guards, "check_commit", lambda coordinator, commit: list(commit.offsets)),
    ),
    Switch(
        "commits-in-line",
        "5.4 commits and changes of a group are in one queue",
        (Coordinator, "write_offsets", _write_offsets_beside),
    ),
    Switch(
        "fenced-drops",
        "clients: a fenced member drops all its partitions",
        (GroupMember, "_drop", _drop_nothing),
    ),
    Switch(
        "late-answers",
        "clients: only the answer to the last heartbeat counts",
        (GroupMember, "step", _step_on_late_answers),
    ),
    Switch(
        "owned-until-released",
        "clients: a member reports a partition as owned for as long as it consumes it",
        (GroupMember, "_request", _request_without_revoked),
    ),
)
