"""Bug switches: each drops one rule of groups, as a careless hand might, and the simulator must notice.

As in `simulator.switches`: a switch replaces one named function for as long as it is open. Rules of the shells are
dropped here in the simulator's own form; those of the pure room are dropped in the production code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups import JOIN_EPOCH, Heartbeat, rules
from fairlead_broker.groups.holdings import Holding, is_apart
from fairlead_broker.registry.group_records import MemberRecord
from groups import guards
from groups.broker import Broker
from groups.coordinator import Coordinator
from groups.member import Member
from groups.messages import Request
from simulator.switches import Switch, replaced

READ_BEFORE_SECONDS: Final = 0.4
"""How old what was read is when the careless claim."""

# -- claims and writes


def _written_under_claim() -> Any:
    return replaced((guards, "claimed", lambda group, revision: ()))


def _unknown_is_failed() -> Any:
    def in_doubt(coordinator: Coordinator) -> None:
        coordinator._in_round = []
        coordinator._busy = False
        coordinator.wake()

    return replaced((guards, "in_doubt", in_doubt))


def _new_claim_after_doubt() -> Any:
    def in_doubt(coordinator: Coordinator) -> None:
        coordinator.entries = {}
        coordinator.load()

    return replaced((guards, "in_doubt", in_doubt))


def _load_behind_claim() -> Any:
    claim = Coordinator.claim

    def early(self: Coordinator, found: Any) -> None:
        store = self._world.store

        def listed(items: Any) -> None:
            self.load = lambda: self.loaded(items)  # type: ignore[method-assign]
            self.broker.after(READ_BEFORE_SECONDS, claim, self, found)

        self.broker.ask_store(lambda: store.group_items(self.name), listed)

    return replaced((Coordinator, "claim", early))


def _answer_after_write() -> Any:
    send = Coordinator.send

    def hasty(self: Coordinator, turn: Any, requests: list[Request], portions: Any) -> None:
        self._replied(turn, requests)
        send(self, turn, [], portions)

    def stands(self: Coordinator, turn: Any, _: list[Request]) -> None:
        assert self.group is not None, "loaded"
        self.group.commit(turn)
        self._busy = False
        self._commit_offsets()

    return replaced((Coordinator, "send", hasty), (Coordinator, "stands", stands))


def _answers_with_lease() -> Any:
    return replaced((guards, "may_answer", lambda broker: True))


def _holder_of_this_life() -> Any:
    def counts(self: Broker, record: Any) -> bool:
        return record.broker in self.mirror.brokers

    return replaced((Broker, "_counts", counts))


def _full_sessions() -> Any:
    return replaced((guards, "sessions_begin", lambda coordinator: 0.0))


# -- the pure room


def _member_epoch() -> Any:
    def has_released(partitions: Holding, record: MemberRecord, heartbeat: Heartbeat) -> bool:
        return heartbeat.member_epoch == JOIN_EPOCH or (
            heartbeat.owned is not None and is_apart(heartbeat.owned, partitions)
        )

    return replaced(
        (rules, "check_member_epoch", lambda record, heartbeat: None), (rules, "has_released", has_released)
    )


def _released() -> Any:
    return replaced((rules, "has_released", lambda partitions, record, heartbeat: True))


def _free_before_granted() -> Any:
    return replaced((rules, "is_free", lambda place, member_id, owners, granted: True))


def _sessions_end() -> Any:
    return replaced((rules, "session_is_over", lambda ends_at, now: False))


def _revocations_end() -> Any:
    return replaced((rules, "revocation_is_overdue", lambda ends_at, now: False))


def _place_of_the_silent() -> Any:
    return replaced((rules, "may_take_place", lambda holder, heartbeats_missed: True))


def _place_is_taken() -> Any:
    return replaced((rules, "may_take_place", lambda holder, heartbeats_missed: False))


# -- offsets


def _commit_epoch() -> Any:
    return replaced(
        (rules, "check_commit_epoch", lambda member_id, record, member_epoch: None),
        (rules, "may_commit_partition", lambda place, member_id, owners: True),
    )


def _commit_checked() -> Any:
    return replaced((guards, "check_commit", lambda coordinator, commit: list(commit.offsets)))


def _commits_in_line() -> Any:
    write = Coordinator.write_offsets

    def beside(self: Coordinator, commits: list[Request]) -> None:
        write(self, commits)
        self._busy = False

    return replaced((Coordinator, "write_offsets", beside))


# -- members


def _fenced_drops_all() -> Any:
    def fenced(self: Member, code: str) -> None:
        self.epoch, self.joined, self._whole = 0, False, True

    return replaced((Member, "fenced", fenced))


def _late_answers() -> Any:
    return replaced((Member, "awaits", lambda self, request: True))


def _owned_until_released() -> Any:
    def owned(self: Member) -> Mapping[TopicId, frozenset[int]]:
        topics: dict[TopicId, set[int]] = {}
        for topic_id, partition in sorted(set(self.owned) - self.giving_up):
            topics.setdefault(topic_id, set()).add(partition)
        return {topic_id: frozenset(partitions) for topic_id, partitions in topics.items()}

    return replaced((Member, "owned_by_topic", owned))


SWITCHES: Final = (
    Switch("claim-compare", "5.1 a write compares the coordinator's key", _written_under_claim),
    Switch("claim-life", "5.1 a claim lasts as long as its holder's life", _holder_of_this_life),
    Switch("load-behind-claim", "5.1 a group is read behind its claim", _load_behind_claim),
    Switch("unknown-outcome", "5.1 a write without an answer is not a failed write", _unknown_is_failed),
    Switch("new-claim", "5.1 after such a write the group is claimed again", _new_claim_after_doubt),
    Switch("answer-after-write", "5.1 no answer before its write", _answer_after_write),
    Switch("answer-with-lease", "5.1 no answer under a lease in doubt", _answers_with_lease),
    Switch("full-sessions", "5.2 sessions start full after a take-over", _full_sessions),
    Switch("member-epoch", "5.3 a heartbeat counts in the member's epoch", _member_epoch),
    Switch("released", "5.2 a member says what it owns before others get it", _released),
    Switch("free", "5.2 release is written before grant", _free_before_granted),
    Switch("sessions-end", "5.2 a session ends", _sessions_end),
    Switch("revocations-end", "5.2 a rebalance timeout ends", _revocations_end),
    Switch("instance-fenced", "5.3 a static member that is there keeps its place", _place_of_the_silent),
    Switch("instance-returns", "5.3 a static member that comes back gets its place", _place_is_taken),
    Switch("commit-epoch", "5.4 a commit is of a member in its epoch, that has the partition", _commit_epoch),
    Switch("commit-member", "5.4 a commit is of a member", _commit_checked),
    Switch("commits-in-line", "5.4 commits and changes of a group in one line", _commits_in_line),
    Switch("fenced-drops", "clients: a fenced member drops everything", _fenced_drops_all),
    Switch("late-answers", "clients: an answer counts for the last heartbeat only", _late_answers),
    Switch("owned-until-released", "clients: owned is what is still consumed", _owned_until_released),
)
BY_NAME: Final = {switch.name: switch for switch in SWITCHES}
