"""Transactions of producers: AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.group_requests import NO_MEMBER_EPOCH
from fairlead_api.identifiers import ProducerEpoch, ProducerId, TopicId, check_group_name
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.group_offsets import entry_of, refused_commit
from fairlead_broker.kafka.calls.places import RefusedError, TopicFinder
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.calls.transaction_sessions import (
    StatedProducer,
    TransactionSessions,
    request_of,
    transaction_error,
)
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    TxnOffsetCommitResponse,
)
from fairlead_broker.registry.transaction_records import (
    Outcome,
    PendingOffset,
    PendingOffsets,
    TransactionRecord,
)
from fairlead_broker.runtime import Broker
from fairlead_broker.transactions.decisions import Refusal
from fairlead_broker.transactions.kafka_sessions import OtherGroup, with_offsets, with_partitions

SECOND_VERSION_SINCE: Final = 5
"""First version of EndTxn and TxnOffsetCommit that only clients with an epoch for each transaction use."""
FENCED_SINCE: Final = 2
"""First version with the error PRODUCER_FENCED."""
ABORTABLE_SINCE: Final = 4
"""First version of EndTxn with the error TRANSACTION_ABORTABLE."""
_MEMBER_CODES: Final = frozenset(
    {"group_not_empty", "instance_fenced", "member_fenced", "member_not_found", "stale_member_epoch"}
)
"""Codes of the refusals of a commit by a group member that may no longer commit offsets."""


class TransactionCalls:
    """Calls that change the open transaction of a producer."""

    def __init__(self, broker: Broker, sessions: TransactionSessions) -> None:
        self._broker = broker
        self._sessions = sessions

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.ADD_PARTITIONS_TO_TXN: self.add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self.add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self.commit_offsets,
            ApiKey.END_TXN: self.end,
        }

    async def add_partitions(self, call: KafkaCall) -> Reply:
        """Add partitions to the open transaction: all of them, or none."""
        request = call.request
        finder = TopicFinder(self._broker, call, Operation.WRITE)
        errors: dict[tuple[str, int], KafkaError] = {}
        added: dict[TopicId, list[int]] = defaultdict(list)
        for topic in request.v3_and_below_topics:
            try:
                view = finder.find(topic.name, None)
            except RefusedError as refused:
                errors |= {(topic.name, each): refused.error for each in topic.partitions}
                continue
            for each in topic.partitions:
                if 0 <= each < view.partition_count:
                    added[view.topic_id].append(each)
                else:
                    errors[topic.name, each] = KafkaError.UNKNOWN_TOPIC_OR_PARTITION
        others = KafkaError.OPERATION_NOT_ATTEMPTED if errors else KafkaError.NONE
        if not errors:
            stated = StatedProducer(
                request.v3_and_below_transactional_id,
                ProducerId(request.v3_and_below_producer_id),
                ProducerEpoch(request.v3_and_below_producer_epoch),
                is_second_version=False,
            )
            try:
                await self._sessions.change(call, stated, lambda record: with_partitions(record, added))
            except ProblemError as problem:
                others = transaction_error(problem, knows_fenced=call.version >= FENCED_SINCE)
        kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        topics = [
            kind(
                version=call.version,
                name=topic.name,
                results_by_partition=[
                    kind.AddPartitionsToTxnPartitionResult(
                        version=call.version,
                        partition_index=each,
                        partition_error_code=errors.get((topic.name, each), others),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        response = AddPartitionsToTxnResponse(version=call.version, results_by_topic_v3_and_below=topics)
        return Reply(response, error=next(iter(errors.values()), others))

    async def add_offsets(self, call: KafkaCall) -> Reply:
        """Check that offsets of a group may be added; TxnOffsetCommit then adds the offsets."""
        return Reply(
            AddOffsetsToTxnResponse(version=call.version, error_code=await self._offsets_error(call))
        )

    async def _offsets_error(self, call: KafkaCall) -> KafkaError:
        group = call.request.group_id
        try:
            call.access.require(Operation.READ, Kind.GROUP, group)
            check_group_name(group)
        except ProblemError as problem:
            return error_of(problem, Family.GROUP)
        try:
            record = await self._sessions.opened(call, _stated(call, is_second_version=False))
        except ProblemError as problem:
            return transaction_error(problem, knows_fenced=call.version >= FENCED_SINCE)
        offsets = None if record.kafka is None else record.kafka.offsets
        return KafkaError.NONE if offsets is None or offsets.group == group else KafkaError.INVALID_TXN_STATE

    async def commit_offsets(self, call: KafkaCall) -> Reply:
        """Add offsets of a group to the open transaction; they are stored if and only if it is committed."""
        request = call.request
        finder = TopicFinder(self._broker, call, Operation.READ)
        errors: dict[tuple[str, int], KafkaError] = {}
        entries: list[PendingOffset] = []
        for topic in request.topics:
            try:
                view = finder.find(topic.name, None)
            except RefusedError as refused:
                errors |= {(topic.name, each.partition_index): refused.error for each in topic.partitions}
                continue
            for each in topic.partitions:
                entry = entry_of(view, each)
                if isinstance(entry, KafkaError):
                    errors[topic.name, each.partition_index] = entry
                else:
                    entries.append(
                        PendingOffset(
                            topic=view.name,
                            topic_id=view.topic_id,
                            partition=entry.partition,
                            offset=entry.offset,
                            leader_epoch=entry.leader_epoch,
                            metadata=entry.metadata,
                        )
                    )
        others = await self._add_offsets(call, tuple(entries)) if entries else KafkaError.NONE
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        topics = [
            kind(
                version=call.version,
                name=topic.name,
                partitions=[
                    kind.TxnOffsetCommitResponsePartition(
                        version=call.version,
                        partition_index=each.partition_index,
                        error_code=errors.get((topic.name, each.partition_index), others),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        response = TxnOffsetCommitResponse(version=call.version, topics=topics)
        return Reply(response, error=next(iter(errors.values()), others))

    async def _add_offsets(self, call: KafkaCall, entries: tuple[PendingOffset, ...]) -> KafkaError:
        request = call.request
        is_member = call.version >= 3 and request.generation_id >= 0
        pending = PendingOffsets(
            group=request.group_id,
            member_id=request.member_id if is_member else None,
            member_epoch=request.generation_id if is_member else NO_MEMBER_EPOCH,
            offsets=entries,
        )

        def changed(record: TransactionRecord) -> TransactionRecord | Refusal:
            return with_offsets(record, pending)

        try:
            call.access.require(Operation.READ, Kind.GROUP, request.group_id)
            check_group_name(request.group_id)
            await self._broker.groups.check_commit(request.group_id, request_of(pending), call.access.owner)
        except ProblemError as problem:
            return await refused_commit(self._broker, call, pending.member_epoch, problem)
        stated = _stated(call, is_second_version=call.version >= SECOND_VERSION_SINCE)
        try:
            await self._sessions.change(call, stated, changed)
        except OtherGroup:
            return KafkaError.INVALID_TXN_STATE
        except ProblemError as problem:
            return transaction_error(problem, knows_fenced=False)
        return KafkaError.NONE

    async def end(self, call: KafkaCall) -> Reply:
        """Commit or abort the open transaction; from version 5 on, return the epoch of the next transaction."""
        version = call.version
        stated = _stated(call, is_second_version=version >= SECOND_VERSION_SINCE)
        outcome = Outcome.COMMIT if call.request.committed else Outcome.ABORT
        response = EndTxnResponse(version=version, error_code=KafkaError.NONE)
        try:
            following = await self._sessions.end(call, stated, outcome)
        except ProblemError as problem:
            if problem.code in _MEMBER_CODES:
                # Both errors make the client abort the transaction and go on.
                response.error_code = (
                    KafkaError.TRANSACTION_ABORTABLE
                    if version >= ABORTABLE_SINCE
                    else KafkaError.INVALID_PRODUCER_ID_MAPPING
                )
            else:
                response.error_code = transaction_error(problem, knows_fenced=version >= FENCED_SINCE)
        else:
            if version >= SECOND_VERSION_SINCE:
                response.producer_id, response.producer_epoch = following
        return Reply(response)


def _stated(call: KafkaCall, *, is_second_version: bool) -> StatedProducer:
    request = call.request
    return StatedProducer(
        request.transactional_id,
        ProducerId(request.producer_id),
        ProducerEpoch(request.producer_epoch),
        is_second_version,
    )
