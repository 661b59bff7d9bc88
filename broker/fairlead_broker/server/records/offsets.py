"""Calls about a partition's log: its ends, offsets at times, deleted records, accepted damage, digests, cleaning.

Callers: ``application`` for the routes named in ``endpoints``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.requests import (
    HIGH_WATERMARK,
    READ_COMMITTED,
    AcceptDamageAnswer,
    AcceptDamageRequest,
    DeleteRecordsAnswer,
    DeleteRecordsRequest,
    Isolation,
    OffsetAtTime,
    OffsetsLookupAnswer,
    OffsetsLookupRequest,
    PartitionOffsets,
    PartitionOffsetsLookup,
    TopicOffsetLookup,
    decode_request,
)
from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.peers import messages
from fairlead_broker.peers.forwarded_callers import caller_header
from fairlead_broker.peers.peers import PeerUnavailable, problem_of
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.positions import look_up
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.routing.forwarding import JSON_BODY, LEADER_SECONDS_MAX, Forwarding, no_answer
from fairlead_broker.server.routing.locate import (
    Elsewhere,
    Here,
    Location,
    check_epoch,
    checked_topic,
    locate,
)


class OffsetCalls:
    """Endpoints of the calls about offsets of partitions."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        at_leader = self._forwarding.at_leader
        return {
            "partition_offsets": at_leader(self.partition_offsets, writing=False),
            "lookup_offsets": self.lookup_offsets,
            "delete_records": at_leader(self.delete_records, writing=True),
            "accept_damage": at_leader(self.accept_damage, writing=True),
            "digest_partition": at_leader(self.digest_partition, writing=False),
            "partition_cleaning": at_leader(self.partition_cleaning, writing=False),
            "clean_partition": at_leader(self.clean_partition, writing=False),
        }

    async def partition_offsets(self, call: Call, replica: LeaderReplica) -> None:
        """``GET /v1/topics/{topic}/partitions/{partition}/offsets``."""
        timestamp_us = call.query.timestamp_us("timestamp")
        if timestamp_us is None:
            answer: object = PartitionOffsets(
                log_start_offset=replica.log_start_offset,
                high_watermark=replica.high_watermark,
                log_end_offset=replica.log_end_offset,
                last_stable_offset=replica.last_stable_offset,
                leader_epoch=replica.leader_epoch,
            )
        else:
            committed = call.query.text("isolation") == READ_COMMITTED
            offset, found_us = await look_up(replica, timestamp_us, self._broker.disk, committed=committed)
            answer = OffsetAtTime(
                offset=offset, timestamp=_formatted(found_us), leader_epoch=replica.leader_epoch
            )
        await call.answer_json(answer)

    async def lookup_offsets(self, call: Call) -> None:
        """``POST /v1/offsets:lookup``: one offset or problem per partition, in the order of the request."""
        request = decode_request(OffsetsLookupRequest, await json_body(call))
        partitions = await self.look_up(call, request)
        refused = any(isinstance(entry.problem, dict) for entry in partitions)
        await call.answer_json(OffsetsLookupAnswer(partitions=partitions), 207 if refused else 200)

    async def look_up(self, call: Call, request: OffsetsLookupRequest) -> list[PartitionOffsetsLookup]:
        """Return one offset or problem per partition, in the order of the request, from the leaders.

        Topics that the caller is not allowed to describe are not looked up.
        """
        answers: dict[int, PartitionOffsetsLookup] = {}
        here: dict[int, LeaderReplica] = {}
        elsewhere: dict[BrokerId, dict[int, TopicOffsetLookup]] = {}
        for place, wanted in enumerate(request.partitions):
            found = await self._locate(call, wanted)
            if isinstance(found, Here):
                here[place] = found.replica
            elif isinstance(found, Elsewhere):
                elsewhere.setdefault(found.broker, {})[place] = wanted
            else:
                answers[place] = found
        for asked in await asyncio.gather(
            *(self._ask(call, leader, each, request.isolation) for leader, each in elsewhere.items())
        ):
            answers |= asked
        for place, replica in here.items():
            answers[place] = await self._looked_up(request.partitions[place], replica, request.isolation)
        return [answers[place] for place in range(len(request.partitions))]

    async def _locate(self, call: Call, wanted: TopicOffsetLookup) -> Location | PartitionOffsetsLookup:
        """Return the location of a partition's leader, or the refusal of its lookup."""
        topic_id = None
        try:
            call.access.require(Operation.DESCRIBE, Kind.TOPIC, wanted.topic)
            expected = None if wanted.topic_id is None else TopicId(wanted.topic_id)
            topic_id = checked_topic(self._broker.views.by_name(wanted.topic), expected).topic_id
            return await locate(call, self._broker, topic_id, PartitionIndex(wanted.partition))
        except ProblemError as problem:
            return _refused(wanted, problem, topic_id)

    async def delete_records(self, call: Call, replica: LeaderReplica) -> None:
        """``POST /v1/topics/{topic}/partitions/{partition}:delete-records``."""
        request = decode_request(DeleteRecordsRequest, await json_body(call))
        offset = None if request.offset == HIGH_WATERMARK else Offset(request.offset)
        low_watermark = await self._broker.delete_records(replica, offset)
        await call.answer_json(
            DeleteRecordsAnswer(low_watermark=low_watermark, leader_epoch=replica.leader_epoch)
        )

    async def accept_damage(self, call: Call, replica: LeaderReplica) -> None:
        """``POST /v1/topics/{topic}/partitions/{partition}:accept-damage``."""
        request = decode_request(AcceptDamageRequest, await json_body(call))
        first, following = Offset(request.first_offset), Offset(request.next_good_offset)
        await self._broker.accept_damage(replica, first, following)
        await call.answer_json(
            AcceptDamageAnswer(
                first_offset=first, next_good_offset=following, leader_epoch=replica.leader_epoch
            )
        )

    async def digest_partition(self, call: Call, replica: LeaderReplica) -> None:
        """``GET /v1/topics/{topic}/partitions/{partition}:digest``."""
        first, end = (call.query.integer_or_none(name) for name in ("from", "to"))
        if call.query.text("mode") == "latest":
            await call.answer_json(await self._broker.digests.compare_newest(replica))
            return
        await call.answer_json(
            await self._broker.digests.compare(
                replica, None if first is None else Offset(first), None if end is None else Offset(end)
            )
        )

    async def partition_cleaning(self, call: Call, replica: LeaderReplica) -> None:
        """``GET /v1/topics/{topic}/partitions/{partition}/cleaning``."""
        await call.answer_json(await self._broker.cleanings.of(replica))

    async def clean_partition(self, call: Call, replica: LeaderReplica) -> None:
        """``POST /v1/topics/{topic}/partitions/{partition}:clean``."""
        await call.answer_json(await self._broker.cleanings.of(replica, begin=True))

    async def _ask(
        self, call: Call, leader: BrokerId, wanted: Mapping[int, TopicOffsetLookup], isolation: Isolation
    ) -> dict[int, PartitionOffsetsLookup]:
        body = messages.encode(OffsetsLookupRequest(isolation=isolation, partitions=list(wanted.values())))
        headers = [JSON_BODY, caller_header(call.access)]
        try:
            heard = await self._forwarding.ask(
                leader, "POST", "/v1/offsets:lookup", headers, body, LEADER_SECONDS_MAX
            )
            if heard.status >= HTTPStatus.BAD_REQUEST:
                raise problem_of(heard)
        except PeerUnavailable as unavailable:
            return {
                place: _refused(each, no_answer(unavailable, each.topic, each.partition, writing=False))
                for place, each in wanted.items()
            }
        except ProblemError as problem:
            return {place: _refused(each, problem) for place, each in wanted.items()}
        answer = messages.decode(OffsetsLookupAnswer, heard.body)
        return dict(zip(wanted, answer.partitions, strict=True))

    async def _looked_up(
        self, wanted: TopicOffsetLookup, replica: LeaderReplica, isolation: Isolation
    ) -> PartitionOffsetsLookup:
        try:
            check_epoch(replica, None if wanted.leader_epoch is None else LeaderEpoch(wanted.leader_epoch))
            committed = isolation == READ_COMMITTED
            offset, timestamp_us = await look_up(
                replica, wanted.position, self._broker.disk, committed=committed
            )
        except ProblemError as problem:
            return _refused(wanted, problem, replica.topic_id)
        return PartitionOffsetsLookup(
            topic=wanted.topic,
            topic_id=replica.topic_id,
            partition=wanted.partition,
            offset=offset,
            timestamp=_formatted(timestamp_us),
            leader_epoch=replica.leader_epoch,
        )


def _refused(
    wanted: TopicOffsetLookup, problem: ProblemError, topic_id: str | None = None
) -> PartitionOffsetsLookup:
    return PartitionOffsetsLookup(
        topic=wanted.topic,
        topic_id=topic_id or wanted.topic_id,
        partition=wanted.partition,
        offset=None,
        timestamp=None,
        problem=dict(problem.to_document()),
    )


def _formatted(timestamp_us: TimestampUs | None) -> str | None:
    return None if timestamp_us is None else format_timestamp(timestamp_us)
