"""Members of groups in the protocol of KIP-848, and lists and descriptions of groups.

Members that use Kafka's clients and members that use the SDK are equal members of the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from msgspec import UNSET

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.group_answers import AssignedPartitions, GroupDescription, HeartbeatAnswer
from fairlead_api.bodies.group_requests import (
    REBALANCE_TIMEOUT_MS_MAX,
    REBALANCE_TIMEOUT_MS_MIN,
    HeartbeatRequest,
    OwnedPartitions,
)
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    ListGroupsResponse,
)
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.groups.refusals import group_not_found

LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
LIST_PAGE: Final = 1_000
CONSUMER_TYPE: Final = "Consumer"
CLASSIC_TYPE: Final = "Classic"
NOT_FOUND_SINCE: Final = 6
"""First version of DescribeGroups that has an error for an unknown group."""


class GroupCalls:
    """Calls about groups of the KIP-848 protocol, and about groups of any kind."""

    def __init__(self, broker: Broker, changes: Changes, new_id: Callable[[], str]) -> None:
        """`new_id` returns a random UUID, for members that send no id."""
        self._broker = broker
        self._changes = changes
        self._new_id = new_id

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe,
            ApiKey.DESCRIBE_GROUPS: self.describe_classic,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete_groups,
        }

    # -- members

    async def heartbeat(self, call: KafkaCall) -> Reply:
        """Process a join, a heartbeat or a leave of a member."""
        request = call.request
        member_id = request.member_id
        try:
            call.access.require(Operation.READ, Kind.GROUP, request.group_id)
            check_group_name(request.group_id)
            if request.member_epoch < 0:
                await self._leave(call, member_id)
                return _left(call, request.member_epoch)
            if not member_id and request.member_epoch == 0:
                member_id = self._new_id()
            check_group_name(member_id)
            answer = await self._broker.groups.heartbeat(
                request.group_id, member_id, heartbeat_request(call), call.access
            )
        except ProblemError as problem:
            return Reply(
                ConsumerGroupHeartbeatResponse(
                    version=call.version,
                    # A group with classic members is not a group of this protocol.
                    error_code=KafkaError.GROUP_ID_NOT_FOUND
                    if problem.code == "group_not_empty"
                    else error_of(problem, Family.GROUP),
                    error_message=problem.detail,
                    member_id=member_id or None,
                )
            )
        return Reply(_heartbeat_response(call.version, member_id, answer))

    async def _leave(self, call: KafkaCall, member_id: str) -> None:
        is_static = call.request.member_epoch == STATIC_LEAVE_EPOCH
        owner = None if call.access.rules.is_superuser else call.access.owner
        await self._broker.groups.leave(call.request.group_id, member_id, static=is_static, principal=owner)

    # -- descriptions and lists

    async def describe(self, call: KafkaCall) -> Reply:
        """Return groups with their members."""
        groups = [await self._described(call, group) for group in dict.fromkeys(call.request.group_ids)]
        return Reply(ConsumerGroupDescribeResponse(version=call.version, groups=groups))

    async def _described(self, call: KafkaCall, group: str) -> Any:
        kind = ConsumerGroupDescribeResponse.DescribedGroup
        try:
            call.access.require(Operation.DESCRIBE, Kind.GROUP, group)
            check_group_name(group)
            if await self._broker.groups.classic_group(group) is not None:
                raise group_not_found(group)
            found = await self._broker.groups.describe(group)
        except ProblemError as problem:
            return kind(
                version=call.version,
                error_code=error_of(problem, Family.GROUP),
                error_message=problem.detail,
                group_id=group,
                group_state="Unknown",
                members=[],
            )
        return kind(
            version=call.version,
            group_id=group,
            group_state=found.state.capitalize(),
            group_epoch=found.epoch,
            assignment_epoch=found.epoch,
            assignor_name=found.assignor,
            members=_members(call, found),
        )

    async def describe_classic(self, call: KafkaCall) -> Reply:
        """Return groups of the classic protocol with their members; tools use another API for other groups."""
        groups = [await self._described_classic(call, group) for group in dict.fromkeys(call.request.groups)]
        return Reply(DescribeGroupsResponse(version=call.version, groups=groups))

    async def _described_classic(self, call: KafkaCall, group: str) -> Any:
        kind, version = DescribeGroupsResponse.DescribedGroup, call.version
        response = kind(
            version=version,
            error_code=KafkaError.NONE,
            group_id=group,
            group_state="Dead",
            protocol_type="",
            protocol_data="",
            members=[],
        )
        try:
            call.access.require(Operation.DESCRIBE, Kind.GROUP, group)
            check_group_name(group)
            classic = await self._broker.groups.classic_group(group)
            if classic is None:
                raise group_not_found(group)
        except ProblemError as problem:
            error = error_of(problem, Family.GROUP)
            if error is not KafkaError.GROUP_ID_NOT_FOUND or version >= NOT_FOUND_SINCE:
                response.error_code, response.error_message = error, problem.detail
            return response
        response.group_state, response.protocol_type = classic.state.value, classic.protocol_type
        response.protocol_data = classic.protocol
        response.members = [
            kind.DescribedGroupMember(
                version=version,
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.subscription(classic.protocol),
                member_assignment=each.assignment,
            )
            for each in classic.members.values()
        ]
        return response

    async def list_groups(self, call: KafkaCall) -> Reply:
        """Return the groups that this broker coordinates and the caller may describe."""
        own, after = self._broker.peer_side.peers.own.broker, None
        states = {state.lower() for state in (call.request.states_filter if call.version >= 4 else [])}
        types = {each.lower() for each in (call.request.types_filter if call.version >= 5 else [])}
        groups = []
        try:
            while True:
                page = await self._broker.groups.listing(after, LIST_PAGE)
                seen = [
                    each.group
                    for each in page.items
                    if each.coordinator == own and call.access.sees(Kind.GROUP, each.group)
                ]
                groups += [await self._listed(call.version, group) for group in seen]
                after = page.next
                if after is None:
                    break
        except ProblemError as problem:
            return Reply(
                ListGroupsResponse(
                    version=call.version, error_code=error_of(problem, Family.GROUP), groups=[]
                )
            )
        groups = [
            each
            for each in groups
            if (not states or each.group_state.lower() in states)
            and (not types or each.group_type.lower() in types)
        ]
        return Reply(ListGroupsResponse(version=call.version, error_code=KafkaError.NONE, groups=groups))

    async def _listed(self, version: int, group: str) -> Any:
        protocol_type, kind, state = "consumer", CONSUMER_TYPE, "Dead"
        # The group may have been deleted or moved since it was listed.
        with suppress(ProblemError):
            classic = await self._broker.groups.classic_group(group)
            if classic is None:
                state = (await self._broker.groups.describe(group)).state.capitalize()
            else:
                protocol_type, kind, state = classic.protocol_type, CLASSIC_TYPE, classic.state.value
        return ListGroupsResponse.ListedGroup(
            version=version, group_id=group, protocol_type=protocol_type, group_state=state, group_type=kind
        )

    async def delete_groups(self, call: KafkaCall) -> Reply:
        """Delete groups without members."""
        results = [
            DeleteGroupsResponse.DeletableGroupResult(
                version=call.version, group_id=group, error_code=await self._deleted(call, group)
            )
            for group in dict.fromkeys(call.request.groups_names)
        ]
        return Reply(DeleteGroupsResponse(version=call.version, results=results))

    async def _deleted(self, call: KafkaCall, group: str) -> KafkaError:
        async def run() -> Changed:
            await self._broker.groups.delete(group)
            return Changed(HTTPStatus.NO_CONTENT)

        try:
            check_group_name(group)
            await self._changes.make_here(call, Change("delete_group", {"group": group}, run))
        except ProblemError as problem:
            return error_of(problem, Family.GROUP)
        return KafkaError.NONE


def heartbeat_request(call: KafkaCall) -> HeartbeatRequest:
    """Return the heartbeat of a member in the form that the runtime takes; null marks an unchanged field.

    Raises `malformed_request` or `invalid_topic_name`.
    """
    request = call.request
    joins = request.member_epoch == 0
    timeout_ms = request.rebalance_timeout_ms
    pattern = request.subscribed_topic_regex if call.version >= 1 else None
    owned = request.topic_partitions
    return HeartbeatRequest(
        member_epoch=request.member_epoch,
        topics=UNSET if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        # An empty pattern removes the previous one.
        topic_pattern=UNSET if pattern is None else pattern or None,
        instance_id=request.instance_id or UNSET,
        rack=request.rack_id or UNSET,
        assignor=request.server_assignor or UNSET,
        rebalance_timeout_ms=UNSET
        if timeout_ms < 0
        else min(max(timeout_ms, REBALANCE_TIMEOUT_MS_MIN), REBALANCE_TIMEOUT_MS_MAX),
        owned=UNSET
        if owned is None or joins
        else tuple(
            OwnedPartitions(topic_id=str(each.topic_id), partitions=tuple(each.partitions)) for each in owned
        ),
    )


def _heartbeat_response(version: int, member_id: str, answer: HeartbeatAnswer) -> Any:
    kind = ConsumerGroupHeartbeatResponse
    response = kind(
        version=version,
        error_code=KafkaError.NONE,
        member_id=member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
    )
    if answer.assignment is not None:
        response.assignment = kind.Assignment(
            version=version,
            topic_partitions=[
                kind.Assignment.TopicPartitions(
                    version=version, topic_id=UUID(each.topic_id), partitions=each.partitions
                )
                for each in answer.assignment
            ],
        )
    return response


def _left(call: KafkaCall, epoch: int) -> Reply:
    """Return the response to a member that has left."""
    return Reply(
        ConsumerGroupHeartbeatResponse(
            version=call.version,
            error_code=KafkaError.NONE,
            member_id=call.request.member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=0,
        )
    )


def _members(call: KafkaCall, found: GroupDescription) -> list[Any]:
    kind = ConsumerGroupDescribeResponse.DescribedGroup.Member

    def partitions(assigned: Iterable[AssignedPartitions]) -> Any:
        return kind.Assignment(
            version=call.version,
            topic_partitions=[
                kind.Assignment.TopicPartitions(
                    version=call.version,
                    topic_id=UUID(each.topic_id),
                    topic_name=each.topic,
                    partitions=each.partitions,
                )
                for each in assigned
                if call.access.sees(Kind.TOPIC, each.topic)
            ],
        )

    return [
        kind(
            version=call.version,
            member_id=each.member_id,
            instance_id=each.instance_id,
            rack_id=each.rack,
            member_epoch=each.member_epoch,
            client_id="",
            client_host="",
            subscribed_topic_names=[name for name in each.topics if call.access.sees(Kind.TOPIC, name)],
            subscribed_topic_regex=each.topic_pattern,
            assignment=partitions(each.assignment),
            target_assignment=partitions(each.target),
            member_type=1,
        )
        for each in found.members
    ]
