"""Consumer groups of one broker: answer the calls from `server` for the groups that this broker coordinates.

`Groups` finds or becomes the coordinator, owns the coordinated groups, and drops them when the broker's
incarnation ends. The functions at the end convert requests to events and replies to answers. The package
`fairlead_broker.groups`, which performs no I/O, decides which requests from a member are accepted. Offsets are stored
as the client sends them. The module does not use HTTP. The module is a single file because all calls share the lookup
of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from msgspec import UNSET, UnsetType

from fairlead_api.bodies.group_answers import (
    AssignedPartitions,
    CommitAnswer,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupSummary,
    HeartbeatAnswer,
    LagAnswer,
    MemberDescription,
    OffsetsAnswer,
    ResetAnswer,
)
from fairlead_api.bodies.group_requests import (
    REBALANCE_TIMEOUT_MS_DEFAULT,
    SESSION_TIMEOUT_MS_DEFAULT,
    CommitRequest,
    HeartbeatRequest,
    ResetRequest,
)
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.requests import Isolation
from fairlead_api.identifiers import BrokerId, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.access.caller_access import OPEN_ACCESS, CallerAccess
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.group_store import GroupStore
from fairlead_broker.coordination.membership import Incarnation
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.protocol import CoordinationError
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.groups import (
    Group,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MemberView,
    Partitions,
    Subscription,
    member_not_found,
)
from fairlead_broker.groups.classic.group import ClassicGroup
from fairlead_broker.groups.classic.messages import ClassicReply, Refusal, Refused
from fairlead_broker.registry.group_records import OffsetEntry
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.groups import lag as group_lag
from fairlead_broker.runtime.groups import refusals as group_refusals
from fairlead_broker.runtime.groups.claims import GroupClaims
from fairlead_broker.runtime.groups.classic_members import EventOf
from fairlead_broker.runtime.groups.coordinated_group import CoordinatedGroup, GroupShared, HeartbeatPace
from fairlead_broker.runtime.groups.meters import GroupMeters
from fairlead_broker.runtime.groups.offset_budget import OffsetBudget, own_rate
from fairlead_broker.runtime.groups.offsets import (
    CommittedOffsets,
    Entries,
    OffsetsAsked,
    committed,
    offsets_named,
)
from fairlead_broker.runtime.groups.topics import GroupTopics
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.runtime.transactions.joint_decisions import JointDecision
from fairlead_broker.telemetry import Log

RELEASES_AT_ONCE: Final = 32
RELEASE_SECONDS_MAX: Final = 1.0
"""Maximum number of seconds for releasing claims, out of the 10 s that a stop may take. Claims that are not released
end with the broker's registration.
"""

T = TypeVar("T")
TopicName = Callable[[TopicId], str | None]
"""Function that returns the name of an existing topic; None if the topic does not exist."""


class Groups:
    """Consumer groups of one broker."""

    def __init__(
        self,
        store: GroupStore,
        transactions: TransactionStore,
        mirror: Mirror,
        incarnation: Incarnation,
        clock: Clock,
        positions: Positions,
        meters: GroupMeters,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        log: Log,
    ) -> None:
        """`spawn` starts a task of the broker.

        The owner must notify this object of changes to the mirror and to the incarnation.
        """
        self._store = store
        self._mirror = mirror
        self._positions = positions
        self._claims = GroupClaims(store, mirror, incarnation)
        self._groups: dict[str, CoordinatedGroup] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stopping = False
        self.on_loss: Callable[[], None] = lambda: None
        """Function called when a group with members is dropped: the members need a coordinator even if no call names
        the group."""
        self.pace = HeartbeatPace()
        self._shared = GroupShared(
            store=store,
            transactions=transactions,
            topics=GroupTopics(mirror.metadata, self._topics_changed),
            budget=OffsetBudget(clock, lambda: own_rate(mirror.metadata)),
            incarnation=incarnation,
            clock=clock,
            meters=meters,
            spawn=spawn,
            let_go=self._forget,
            log=log,
            pace=self.pace,
        )

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[CoordinatedGroup]:
        return iter(tuple(self._groups.values()))

    # -- the coordinator

    def coordinates(self, group: str) -> bool:
        """Return whether this broker coordinates a group that it has loaded."""
        coordinated = self._groups.get(group)
        return coordinated is not None and coordinated.usable

    async def coordinator_elsewhere(self, group: str, *, again: bool = False) -> BrokerId | None:
        """Return the other broker that coordinates a group or should claim it; None if this broker is the coordinator.

        `again`: read the store, because the cached coordinator was wrong. Raises `coordination_unavailable` or
        `shutting_down`.
        """
        if self.coordinates(group):
            return None
        with self._trouble(group):
            return await self._claims.elsewhere(group, again=again)

    # -- members

    async def heartbeat(
        self, group: str, member_id: str, request: HeartbeatRequest, access: CallerAccess = OPEN_ACCESS
    ) -> HeartbeatAnswer:
        """Process a heartbeat, which may add a member to the group.

        `access`: access of the caller, to which the member must belong if access rules are enforced. Raises `forbidden`
        for topics that the caller may not read, `not_coordinator`, or the problem with which the group refuses the
        heartbeat.
        """
        event = heartbeat_event(member_id, request, access.owner)
        try:
            if not access.is_open:
                access.require_subscription(request.topics or (), request.topic_pattern or None)
        except ProblemError:
            if not request.joins:
                # The refusal of the topics takes precedence over problems of the removal.
                with suppress(ProblemError):
                    coordinated = await self._of_member(member_id, group)
                    await coordinated.remove_refused(event, access)
            raise
        coordinated = await self._of_member(member_id, group, make=request.joins)
        coordinated.classic.check_empty()
        reply = await coordinated.heartbeat(event, access)
        assert isinstance(reply, HeartbeatReply), "the reply to a heartbeat is a HeartbeatReply"
        return heartbeat_answer(reply, self._mirror.metadata.topic_name)

    async def leave(self, group: str, member_id: str, *, static: bool, principal: str | None = None) -> None:
        """Remove a member; with `static`, a static member keeps its partitions until its session ends.

        Raises `member_not_found`.
        """
        coordinated = await self._of_member(member_id, group)
        await coordinated.ask(Leave(member_id, None, static, principal))

    async def classic(self, group: str, event_of: EventOf, *, joins: bool = False) -> ClassicReply:
        """Process an event of a member of Kafka's classic protocol; a join and a sync wait for other members.

        Raises `not_coordinator` and the problems of the store.
        """
        try:
            coordinated = await self._coordinated(group, make=joins)
        except ProblemError as problem:
            if problem.code == "group_not_found":
                return Refused(Refusal.UNKNOWN_MEMBER_ID)
            raise
        if coordinated.group.member_count:
            return Refused(Refusal.INCONSISTENT_GROUP_PROTOCOL if joins else Refusal.UNKNOWN_MEMBER_ID)
        return await coordinated.ask_classic(event_of)

    async def classic_group(self, group: str) -> ClassicGroup | None:
        """Return the classic group with this name, or None for a group with members of the protocol of KIP-848.

        Raises `group_not_found`.
        """
        coordinated = await self._coordinated(group)
        return None if coordinated.group.member_count else coordinated.classic.group

    # -- offsets

    async def commit(self, group: str, request: CommitRequest, principal: str | None = None) -> CommitAnswer:
        """Store offsets; return one result per entry. Raises a problem if the member is not allowed to commit."""
        coordinated, asked = await self._asked(group, request, principal)
        if asked.admit():
            await coordinated.commit(asked.admit)
        return asked.answer()

    async def decide(
        self, group: str, request: CommitRequest, decision: JointDecision, principal: str | None = None
    ) -> None:
        """Commit transactions and store offsets in one write (rule 7.5).

        Raises a problem, and neither commits a transaction nor stores an offset, if the member is not allowed to
        commit one of the offsets or if a transaction cannot be committed.
        """
        coordinated, asked = await self._asked(group, request, principal)
        await coordinated.decide(decision, asked.admit_all, len(request.offsets))

    async def check_commit(self, group: str, request: CommitRequest, principal: str | None = None) -> None:
        """Raise the problem with which `decide` would refuse offsets at this moment."""
        _, asked = await self._asked(group, request, principal)
        asked.admit_all()

    async def _asked(
        self, group: str, request: CommitRequest, principal: str | None
    ) -> tuple[CoordinatedGroup, OffsetsAsked]:
        """Return the group of a commit, and the commit with the positions of its partitions.

        The caller must not await before it commits, since the claim on a new group without changes could be released in
        the meantime.
        """
        member_id = request.member_id
        beyond = await self._positions.beyond(offsets_named(request, self._mirror.metadata))
        coordinated = await self._of_member(member_id, group, make=member_id is None)
        now_us = self._shared.clock.now_us()
        metadata = self._mirror.metadata
        classic = coordinated.classic
        checks = classic if classic.group.members else coordinated.group
        return coordinated, OffsetsAsked(request, checks, metadata, now_us, beyond, principal)

    async def offsets(self, group: str, topics: Sequence[str] | None) -> OffsetsAnswer:
        """Return the committed offsets of all topics, or only of `topics`. Raises `group_not_found`."""
        coordinated = await self._coordinated(group)
        metadata = self._mirror.metadata
        wanted = None if topics is None else {self._topic_id(name) for name in topics}
        found = (
            (topic_id, entry)
            for topic_id, entry in coordinated.offsets.items()
            if wanted is None or topic_id in wanted
        )
        return OffsetsAnswer(offsets=committed(found, metadata.topic_name))

    async def delete_offsets(self, group: str, topics: Sequence[str] | None) -> OffsetsAnswer:
        """Delete committed offsets of a group without members; return the deleted offsets. Raises `group_not_empty`."""
        return await self._delete_offsets(group, (await self.offsets(group, topics)).offsets)

    async def delete_offsets_at(
        self, group: str, places: Collection[tuple[TopicId, PartitionIndex]]
    ) -> OffsetsAnswer:
        """Delete committed offsets of partitions of a group without members. Raises like `delete_offsets`."""
        found = (await self.offsets(group, None)).offsets
        return await self._delete_offsets(
            group, [each for each in found if (each.topic_id, each.partition) in places]
        )

    async def _delete_offsets(self, group: str, gone: list[CommittedOffset]) -> OffsetsAnswer:
        coordinated = await self._coordinated(group)
        entries = {(TopicId(each.topic_id), each.partition): None for each in gone}
        if entries:
            await coordinated.commit(lambda: _if_empty(coordinated, entries))
        coordinated.check_empty()
        return OffsetsAnswer(offsets=gone)

    async def reset(self, group: str, request: ResetRequest, *, dry_run: bool) -> ResetAnswer:
        """Reset the offsets of a group without members.

        Offsets of named topics can also be set before the group exists: as with Kafka's tool, a reset can set the
        position of a consumer before its first start. Raises `group_not_found` or `group_not_empty`.
        """
        coordinated = await self._to_be_reset(group, request)
        stands = CommittedOffsets({}) if coordinated is None else coordinated.offsets
        metadata, now_us = self._mirror.metadata, self._shared.clock.now_us()
        position = request.position
        partitions = group_lag.reset_partitions(stands, request, metadata)
        positions = await self._positions.ask(group_lag.reset_asked(partitions, position, now_us))
        offsets = group_lag.reset_offsets(stands, position, positions, metadata)
        entries: Entries = {
            (TopicId(each.topic_id), each.partition): OffsetEntry(
                partition=each.partition, offset=Offset(each.after), committed_us=now_us
            )
            for each in offsets
            if each.after is not None
        }
        if entries and not dry_run:
            # The group is created as late as possible, because the claim on a new group without changes is released.
            written = coordinated or await self._coordinated(group, make=True)
            await written.commit(lambda: _if_empty(written, entries))
        return ResetAnswer(offsets=offsets)

    async def _to_be_reset(self, group: str, request: ResetRequest) -> CoordinatedGroup | None:
        """Return the group; None if the reset will create it. Raises `group_not_empty` for a group with members."""
        try:
            coordinated = await self._coordinated(group)
        except ProblemError as problem:
            if problem.code != "group_not_found" or request.topics is None:
                raise
            return None
        coordinated.check_empty()
        return coordinated

    # -- groups

    async def describe(self, group: str) -> GroupDescription:
        """Return a group's members and their partitions. Raises `group_not_found`."""
        coordinated = await self._coordinated(group)
        own, name_of = self._shared.incarnation.broker, self._mirror.metadata.topic_name
        return description(group, coordinated.group, own, name_of)

    async def lag(self, group: str, isolation: Isolation = "read_uncommitted") -> LagAnswer:
        """Return the lag of a group. Raises `group_not_found`."""
        coordinated = await self._coordinated(group)
        metadata = self._mirror.metadata
        partitions = group_lag.partitions_of(coordinated, metadata)
        positions = await self._positions.ask(group_lag.lag_asked(coordinated, partitions))
        now_us = self._shared.clock.now_us()
        return group_lag.lag_answer(coordinated, positions, metadata, now_us, isolation)

    async def delete(self, group: str) -> None:
        """Delete a group without members, including its offsets. Raises `group_not_found` or `group_not_empty`."""
        await (await self._coordinated(group)).delete()

    async def listing(self, after: str | None, limit: int) -> GroupListing:
        """Return groups ordered by name; any broker can answer. Raises `coordination_unavailable`."""
        with self._trouble("of the list"):
            found, following = await self._store.names(after, limit)
        items = [
            GroupSummary(
                group=name, coordinator=holder.broker if holder and self._claims.counts(holder) else None
            )
            for name, holder in found
        ]
        return Page(items=items, next=following)

    # -- groups without calls

    async def adoptable(self, after: str | None, limit: int) -> tuple[list[str], str | None]:
        """Return one page of unowned groups that hashing assigns to this broker, and the next page's start.

        Raises `CoordinationError`.
        """
        found, following = await self._store.names(after, limit)
        names = [
            name
            for name, holder in found
            if name not in self._groups and await self._claims.is_adoptable(name, holder)
        ]
        return names, following

    async def adopt(self, group: str) -> None:
        """Claim and load a group. Raises a problem if the group does not exist or cannot be claimed."""
        await self._coordinated(group)

    # -- life

    def changed(self, update: MirrorUpdate) -> None:
        """Apply a change in the mirror to the topics and claims."""
        self._shared.topics.updated(update.changes)

    def incarnation_changed(self) -> None:
        """Drop all groups, because claims of an ended incarnation are invalid."""
        for coordinated in self:
            coordinated.let_go(group_refusals.restarted(coordinated.name))

    async def release_all(self) -> None:
        """Release the claims of all groups and accept no new groups.

        This method is called after other brokers have learned of the stop.
        """
        self._stopping = True
        room = asyncio.Semaphore(RELEASES_AT_ONCE)

        async def release(coordinated: CoordinatedGroup) -> None:
            # The refusal is definite, because nothing was written for the call. A refused client looks up the next
            # coordinator.
            coordinated.let_go(group_refusals.not_coordinator(coordinated.name, None, None))
            async with room:
                await coordinated.idle()
                await self._store.release(coordinated.claim)

        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                given_back = await asyncio.gather(*map(release, self), return_exceptions=True)
        except TimeoutError:
            given_back = [TimeoutError("no answer in time")]
        if failures := [each for each in given_back if each is not None]:
            self._shared.log.warning(
                "group claims not released", count=len(failures), reason=str(failures[0])
            )

    def close(self) -> None:
        """Drop all groups at once and stop all writes, because the broker is closing."""
        self._stopping = True
        self._shared.budget.close()
        for coordinated in self:
            coordinated.let_go(group_refusals.no_coordinator(coordinated.name))

    # -- helpers

    def _topics_changed(self) -> None:
        for coordinated in self:
            coordinated.wake()

    def _forget(self, coordinated: CoordinatedGroup) -> None:
        if self._groups.get(coordinated.name) is coordinated:
            del self._groups[coordinated.name]
            if coordinated.group.member_count and not self._stopping:
                self.on_loss()

    @contextmanager
    def _trouble(self, group: str) -> Iterator[None]:
        try:
            yield
        except CoordinationError as error:
            raise group_refusals.of_store(error, group) from error
        except RecordUnreadable as error:
            raise group_refusals.unreadable(error, group) from error

    async def _coordinated(self, group: str, *, make: bool = False) -> CoordinatedGroup:
        """Return a usable group, which is claimed and loaded if necessary.

        Raises `group_not_found` unless `make` allows a new group.
        """
        found = self._groups.get(group)
        if found is not None and found.usable:
            return self._existing(found, make=make)
        lock = self._opening.setdefault(group, asyncio.Lock())
        async with lock:
            found = self._groups.get(group)
            if found is None or not found.usable:
                with self._trouble(group):
                    found = await self._open(group, make=make)
            return self._existing(found, make=make)

    async def _of_member(self, member_id: str | None, group: str, *, make: bool = False) -> CoordinatedGroup:
        """Return the group for a member's call; if it does not exist, raise the problem for an unknown member."""
        try:
            return await self._coordinated(group, make=make)
        except ProblemError as problem:
            if problem.code == "group_not_found" and member_id is not None:
                raise member_not_found(group, member_id) from problem
            raise

    def _existing(self, coordinated: CoordinatedGroup, *, make: bool) -> CoordinatedGroup:
        if not make and coordinated.is_absent:
            raise group_refusals.group_not_found(coordinated.name)
        return coordinated

    async def _open(self, group: str, *, make: bool) -> CoordinatedGroup:
        if self._stopping:
            other = await self._claims.elsewhere(group, again=True)
            if other is None:
                raise group_refusals.no_coordinator(group)
            raise group_refusals.not_coordinator(group, other, self._mirror.metadata)
        if (former := self._groups.get(group)) is not None:
            former.let_go(group_refusals.restarted(group))
            await former.idle()
        if not make and not await self._store.exists(group):
            # Claiming a nonexistent group would leave a record in the store for every request.
            raise group_refusals.group_not_found(group)
        claim = await self._claims.claim(group)
        stored = await self._store.load(claim)
        coordinated = CoordinatedGroup(claim, stored, self._shared)
        self._groups[group] = coordinated
        coordinated.begin()
        return coordinated

    def _topic_id(self, name: str) -> TopicId:
        topic = self._mirror.metadata.topics.get(name)
        if topic is None:
            raise refusals.topic_not_found(name)
        return topic.value.topic_id


def heartbeat_event(member_id: str, request: HeartbeatRequest, principal: str | None = None) -> Heartbeat:
    """Return the event for a member's heartbeat request."""
    owned = None
    if request.owned is not UNSET:
        owned = {TopicId(each.topic_id): frozenset(each.partitions) for each in request.owned}
    return Heartbeat(member_id, request.member_epoch, _subscription(request), owned, principal)


def _subscription(request: HeartbeatRequest) -> Subscription | None:
    """Return the subscription fields that a heartbeat changes; None if the heartbeat has no such field.

    A null in the request means the default. In the event, an empty string clears a field, and None leaves the field
    unchanged.
    """
    # Nearly all heartbeats have none of these fields.
    if not request.joins and _fields(request) == _ABSENT:
        return None
    return Subscription(
        topics=None if request.topics is UNSET else frozenset(request.topics or ()),
        pattern=_changed(request.topic_pattern, ""),
        instance_id=request.instance_id or None,
        rack=_changed(request.rack, ""),
        assignor=_changed(request.assignor, ""),
        session_timeout_ms=_changed(request.session_timeout_ms, SESSION_TIMEOUT_MS_DEFAULT),
        rebalance_timeout_ms=_changed(request.rebalance_timeout_ms, REBALANCE_TIMEOUT_MS_DEFAULT),
    )


def _changed(value: T | UnsetType | None, default: T) -> T | None:
    """Return None for an absent field, and the default for null and for an empty value."""
    return None if value is UNSET else value or default


_fields = attrgetter(
    "topics", "topic_pattern", "instance_id", "rack", "assignor", "session_timeout_ms", "rebalance_timeout_ms"
)
_ABSENT = (UNSET,) * 7


def heartbeat_answer(reply: HeartbeatReply, name_of: TopicName) -> HeartbeatAnswer:
    """Return the answer to a heartbeat from the group's reply."""
    return HeartbeatAnswer(
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        session_timeout_ms=reply.session_timeout_ms,
        assignment=None if reply.assignment is None else assigned(reply.assignment, name_of),
    )


def assigned(partitions: Partitions, name_of: TopicName) -> list[AssignedPartitions]:
    """Return assigned partitions by topic, without topics that no longer exist."""
    found = (
        AssignedPartitions(topic=name, topic_id=topic_id, partitions=sorted(indexes))
        for topic_id, indexes in partitions.items()
        if indexes and (name := name_of(topic_id)) is not None
    )
    return sorted(found, key=lambda each: each.topic)


def description(group: str, state: Group, coordinator: BrokerId, name_of: TopicName) -> GroupDescription:
    """Return the description of a group and all its members."""
    return GroupDescription(
        group=group,
        state=state.state.value.lower(),  # type: ignore[arg-type]
        epoch=state.epoch,
        assignor=state.assignor,
        coordinator=coordinator,
        members=[_member(view, name_of) for _, view in sorted(state.members.items())],
    )


def _member(view: MemberView, name_of: TopicName) -> MemberDescription:
    return MemberDescription(
        member_id=view.member_id,
        instance_id=view.instance_id,
        member_epoch=view.member_epoch,
        topics=sorted(view.topics),
        topic_pattern=view.topic_pattern,
        rack=view.rack,
        assignment=assigned(view.assigned, name_of),
        revoking=assigned(view.revoking, name_of),
        target=assigned(view.target, name_of),
    )


def _if_empty(coordinated: CoordinatedGroup, entries: Entries) -> Entries:
    coordinated.check_empty()
    return entries
