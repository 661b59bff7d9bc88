"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final
from uuid import UUID

from msgspec import UNSET

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.group_answers import CommittedOffset
from fairlead_api.bodies.group_requests import (
    METADATA_BYTES_MAX,
    NO_MEMBER_EPOCH,
    CommitRequest,
    OffsetCommit,
)
from fairlead_api.identifiers import PartitionIndex, check_group_name
from fairlead_api.problems import ProblemError
from fairlead_broker.groups.classic.messages import Beat, Refusal, Refused
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.classic import instance_of
from fairlead_broker.kafka.calls.places import NO_ID, RefusedError, TopicFinder
from fairlead_broker.kafka.calls.repetitions import counted, merged
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)
from fairlead_broker.runtime import Broker, TopicView

BY_ID_SINCE: Final = 10
"""First version that names topics by id."""
GROUPS_SINCE: Final = 8
"""First version of OffsetFetch that can ask for several groups at once."""


class GroupOffsetCalls:
    """Calls about the committed offsets of groups."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.OFFSET_COMMIT: self.commit,
            ApiKey.OFFSET_FETCH: self.fetch,
            ApiKey.OFFSET_DELETE: self.delete,
        }

    # -- commits

    async def commit(self, call: KafkaCall) -> Reply:
        """Store the offsets of the partitions that the member may commit; a retention in the request has no effect."""
        request = call.request
        finder = TopicFinder(self._broker, call, Operation.READ)
        errors: dict[tuple[int, int], KafkaError] = {}
        entries: dict[tuple[int, int], OffsetCommit] = {}
        for place, topic in enumerate(request.topics):
            view, error = _found(call, finder, topic)
            for each in topic.partitions:
                key = (place, each.partition_index)
                if view is None:
                    errors[key] = error
                    continue
                entry = entry_of(view, each)
                if isinstance(entry, KafkaError):
                    errors[key] = entry
                else:
                    entries[key] = entry
        if entries:
            errors.update(await self._store(call, entries))
        return Reply(_commit_response(call, errors))

    async def _store(
        self, call: KafkaCall, entries: Mapping[tuple[int, int], OffsetCommit]
    ) -> dict[tuple[int, int], KafkaError]:
        request, access = call.request, call.access
        try:
            access.require(Operation.READ, Kind.GROUP, request.group_id)
            check_group_name(request.group_id)
            is_member = request.generation_id_or_member_epoch >= 0
            commit = CommitRequest(
                member_id=request.member_id if is_member else None,
                member_epoch=request.generation_id_or_member_epoch if is_member else NO_MEMBER_EPOCH,
                offsets=tuple(entries.values()),
            )
            answer = await self._broker.groups.commit(request.group_id, commit, access.owner)
        except ProblemError as problem:
            generation = request.generation_id_or_member_epoch
            return dict.fromkeys(entries, await refused_commit(self._broker, call, generation, problem))
        return {
            key: KafkaError.NONE
            if result.problem is UNSET
            else commit_error(ProblemError.from_document(result.problem))  # type: ignore[arg-type]
            for key, result in zip(entries, answer.offsets, strict=True)
        }

    # -- reads

    async def fetch(self, call: KafkaCall) -> Reply:
        """Return committed offsets; a partition without a committed offset or in an unknown group has offset -1."""
        version, request = call.version, call.request
        if version < GROUPS_SINCE:
            offsets, error = await self._offsets(call, request.group_id)
            topics = self._topics(
                call, request.topics, offsets, error, OffsetFetchResponse.OffsetFetchResponseTopic
            )
            if error and version < 2:
                topics = [_all_refused(topic, error) for topic in topics]
            return Reply(OffsetFetchResponse(version=version, topics=topics, error_code=error))
        kind = OffsetFetchResponse.OffsetFetchResponseGroup
        groups = []
        for group, count in counted(request.groups, lambda each: each.group_id):
            if count > 1:
                error = KafkaError.INVALID_REQUEST
                groups.append(kind(version=version, group_id=group.group_id, topics=[], error_code=error))
                continue
            offsets, error = await self._offsets(call, group.group_id)
            topics = self._topics(call, group.topics, offsets, error, kind.OffsetFetchResponseTopics)
            groups.append(kind(version=version, group_id=group.group_id, topics=topics, error_code=error))
        return Reply(OffsetFetchResponse(version=version, groups=groups))

    async def _offsets(self, call: KafkaCall, group: str) -> tuple[list[CommittedOffset], KafkaError]:
        """Return the offsets of a group, or the error of the whole group."""
        try:
            call.access.require(Operation.DESCRIBE, Kind.GROUP, group)
            check_group_name(group)
            return (await self._broker.groups.offsets(group, None)).offsets, KafkaError.NONE
        except ProblemError as problem:
            if problem.code == "group_not_found":
                return [], KafkaError.NONE
            return [], error_of(problem, Family.GROUP)

    def _topics(
        self, call: KafkaCall, wanted: Any, offsets: Iterable[CommittedOffset], error: KafkaError, kind: Any
    ) -> list[Any]:
        """Return the offsets of the wanted topics, or of all topics that the caller may describe."""
        if error and call.version >= 2:
            return []
        version, by_id = call.version, call.version >= BY_ID_SINCE
        by_topic: dict[str, dict[int, CommittedOffset]] = defaultdict(dict)
        for each in offsets:
            by_topic[each.topic][each.partition] = each
        if wanted is None:
            return [
                kind(
                    version=version,
                    **(
                        {"topic_id": UUID(next(iter(entries.values())).topic_id)}
                        if by_id
                        else {"name": topic}
                    ),
                    partitions=[
                        _fetched(version, kind, index, each) for index, each in sorted(entries.items())
                    ],
                )
                for topic, entries in by_topic.items()
                if call.access.sees(Kind.TOPIC, topic)
            ]
        finder = TopicFinder(self._broker, call, Operation.DESCRIBE)
        topics = []
        named = merged(
            wanted,
            lambda each: each.topic_id if by_id else each.name,
            lambda each: each.partition_indexes,
        )
        for topic, indexes in named:
            view, refusal = _found(call, finder, topic)
            if refusal is KafkaError.UNKNOWN_TOPIC_OR_PARTITION:
                # A topic that does not exist has no committed offsets; Kafka's clients do not regard this as an error.
                refusal = KafkaError.NONE
            entries = {} if view is None else by_topic.get(view.name, {})
            topics.append(
                kind(
                    version=version,
                    **({"topic_id": topic.topic_id} if by_id else {"name": topic.name}),
                    partitions=[
                        _fetched(version, kind, index, entries.get(index), refusal) for index in indexes
                    ],
                )
            )
        return topics

    # -- deletion

    async def delete(self, call: KafkaCall) -> Reply:
        """Delete committed offsets of a group without members."""
        request, kind = call.request, OffsetDeleteResponse.OffsetDeleteResponseTopic
        finder = TopicFinder(self._broker, call, Operation.READ)
        views = [_found(call, finder, topic) for topic in request.topics]
        places = {
            (view.topic_id, PartitionIndex(each.partition_index))
            for topic, (view, _) in zip(request.topics, views, strict=True)
            if view is not None
            for each in topic.partitions
        }

        async def run() -> Changed:
            gone = await self._broker.groups.delete_offsets_at(request.group_id, places)
            return Changed(audited={"topics": sorted({each.topic for each in gone.offsets})})

        try:
            check_group_name(request.group_id)
            await self._changes.make_here(call, Change("delete_offsets", {"group": request.group_id}, run))
        except ProblemError as problem:
            error = error_of(problem, Family.GROUP)
            return Reply(OffsetDeleteResponse(version=call.version, error_code=error, topics=[]))
        topics = [
            kind(
                version=call.version,
                name=topic.name,
                partitions=[
                    kind.OffsetDeleteResponsePartition(
                        version=call.version, partition_index=each.partition_index, error_code=error
                    )
                    for each in topic.partitions
                ],
            )
            for topic, (_, error) in zip(request.topics, views, strict=True)
        ]
        return Reply(OffsetDeleteResponse(version=call.version, error_code=KafkaError.NONE, topics=topics))


async def refused_commit(
    broker: Broker, call: KafkaCall, generation: int, problem: ProblemError
) -> KafkaError:
    """Return the error for a refused commit of a member, which is fenced if its instance id has a new member.

    A member that is merely unknown joins again, and would replace the new member.
    """
    request, error, instance_id = call.request, commit_error(problem), instance_of(call)
    if error is not KafkaError.UNKNOWN_MEMBER_ID or instance_id is None:
        return error
    beat = partial(Beat, member_id=request.member_id, instance_id=instance_id, generation=generation)
    try:
        # The group refuses the heartbeat of a replaced member, and the heartbeat changes nothing.
        reply = await broker.groups.classic(request.group_id, lambda token: beat(token=token))
    except ProblemError:
        return error
    if isinstance(reply, Refused) and reply.refusal is Refusal.FENCED_INSTANCE_ID:
        return KafkaError.FENCED_INSTANCE_ID
    return error


def commit_error(problem: ProblemError) -> KafkaError:
    """Return the error for a refused commit."""
    if problem.code == "group_not_empty":
        # A program that is not a member commits to a group that has members.
        return KafkaError.UNKNOWN_MEMBER_ID
    classic = problem.data.get("classic")
    if isinstance(classic, str):
        return KafkaError[classic]
    return error_of(problem, Family.GROUP)


def _found(call: KafkaCall, finder: TopicFinder, topic: Any) -> tuple[TopicView | None, KafkaError]:
    by_id = call.version >= BY_ID_SINCE
    try:
        return finder.find(None if by_id else topic.name, topic.topic_id if by_id else None), KafkaError.NONE
    except RefusedError as refused:
        return None, refused.error


def entry_of(view: TopicView, wanted: Any) -> OffsetCommit | KafkaError:
    """Return the offset to commit, or the error of a partition that cannot be committed."""
    metadata = wanted.committed_metadata or ""
    if len(metadata.encode()) > METADATA_BYTES_MAX:
        return KafkaError.OFFSET_METADATA_TOO_LARGE
    if not 0 <= wanted.partition_index < view.partition_count:
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    if wanted.committed_offset < 0:
        return KafkaError.INVALID_REQUEST
    epoch = wanted.committed_leader_epoch
    return OffsetCommit(
        topic=view.name,
        topic_id=view.topic_id,
        partition=wanted.partition_index,
        offset=wanted.committed_offset,
        leader_epoch=epoch if epoch >= 0 else None,
        metadata=metadata,
    )


def _commit_response(call: KafkaCall, errors: Mapping[tuple[int, int], KafkaError]) -> Any:
    version, by_id = call.version, call.version >= BY_ID_SINCE
    kind = OffsetCommitResponse.OffsetCommitResponseTopic
    topics = [
        kind(
            version=version,
            name="" if by_id else topic.name,
            topic_id=topic.topic_id if by_id else NO_ID,
            partitions=[
                kind.OffsetCommitResponsePartition(
                    version=version,
                    partition_index=each.partition_index,
                    error_code=errors[place, each.partition_index],
                )
                for each in topic.partitions
            ],
        )
        for place, topic in enumerate(call.request.topics)
    ]
    return OffsetCommitResponse(version=version, topics=topics)


def _fetched(
    version: int, kind: Any, index: int, found: CommittedOffset | None, error: KafkaError = KafkaError.NONE
) -> Any:
    """Return the entry of one partition; `kind`: class of the entry's topic."""
    part = getattr(
        kind, "OffsetFetchResponsePartitions" if version >= GROUPS_SINCE else "OffsetFetchResponsePartition"
    )
    if found is None:
        return part(
            version=version,
            partition_index=index,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=error,
        )
    return part(
        version=version,
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=-1 if found.leader_epoch is None else found.leader_epoch,
        metadata=found.metadata,
        error_code=error,
    )


def _all_refused(topic: Any, error: KafkaError) -> Any:
    """Set the error of a group on each partition, in versions that have no error for the whole response."""
    for partition in topic.partitions:
        partition.error_code = error
    return topic
