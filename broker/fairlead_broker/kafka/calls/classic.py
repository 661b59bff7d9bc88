"""Members of groups in Kafka's classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError
from fairlead_broker.groups.classic.messages import (
    Beat,
    ClassicReply,
    Join,
    Joined,
    Leave,
    Refused,
    Sync,
    Synced,
)
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError, error_of
from fairlead_broker.kafka.protocol.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.groups.classic_members import EventOf

KNOWN_ID_SINCE: Final = 4
"""First version of JoinGroup in which a member joins only with an id that it was assigned."""
STATIC_SINCE: Final = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.OFFSET_COMMIT: 7,
    ApiKey.TXN_OFFSET_COMMIT: 3,
}
"""First version of each API with instance ids."""
PROTOCOL_SINCE: Final = 5
"""First version of SyncGroup that names the assignor."""
MANY_SINCE: Final = 3
"""First version of LeaveGroup that can name several members."""
SUBSCRIPTION_BYTES_MAX: Final = 64 << 10
"""Maximum size of a subscription or an assignment; both are stored for each member."""
PROTOCOLS_BYTES_MAX: Final = 256 << 10
"""Maximum size of a member's subscriptions for all its protocols, with the protocols' names: the group keeps them in
memory, and sends them to its leader. Clients support at most a few protocols."""


class ClassicCalls:
    """Calls of members of classic groups."""

    def __init__(self, broker: Broker, new_id: Callable[[], str]) -> None:
        """`new_id` returns a random UUID, which becomes part of a new member's id."""
        self._broker = broker
        self._new_id = new_id

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave,
        }

    async def join(self, call: KafkaCall) -> Reply:
        """Join a group, and wait until the group's other members have joined."""
        request, version = call.request, call.version
        instance_id = instance_of(call)
        protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
        sizes = [len(data) for _, data in protocols]
        nbytes = sum(sizes) + sum(len(name.encode()) for name, _ in protocols)
        if max(sizes, default=0) > SUBSCRIPTION_BYTES_MAX or nbytes > PROTOCOLS_BYTES_MAX:
            return Reply(_join_response(call, KafkaError.INVALID_REQUEST, None))
        timeout_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
        event = partial(
            Join,
            member_id=request.member_id,
            new_id=f"{instance_id or call.header.client_id or ''}"[:160] + f"-{self._new_id()}",
            instance_id=instance_id,
            client_id=call.header.client_id or "",
            client_host=f"/{call.client.address}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=max(1, timeout_ms),
            protocol_type=request.protocol_type,
            protocols=protocols,
            needs_known_id=version >= KNOWN_ID_SINCE,
        )
        error, reply = await self._ask(call, lambda token: event(token=token), joins=True)
        return Reply(_join_response(call, error, reply))

    async def sync(self, call: KafkaCall) -> Reply:
        """Return the member's assignment, once the group's leader has assigned partitions."""
        request, version = call.request, call.version
        assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
        if any(len(data) > SUBSCRIPTION_BYTES_MAX for data in assignments.values()):
            return Reply(
                SyncGroupResponse(version=version, error_code=KafkaError.INVALID_REQUEST, assignment=b"")
            )
        event = partial(
            Sync,
            member_id=request.member_id,
            instance_id=instance_of(call),
            generation=request.generation_id,
            protocol_type=request.protocol_type if version >= PROTOCOL_SINCE else None,
            protocol=request.protocol_name if version >= PROTOCOL_SINCE else None,
            assignments=assignments,
        )
        error, reply = await self._ask(call, lambda token: event(token=token))
        synced = reply if isinstance(reply, Synced) else None
        return Reply(
            SyncGroupResponse(
                version=version,
                error_code=error,
                protocol_type=synced and synced.protocol_type,
                protocol_name=synced and synced.protocol,
                assignment=synced.assignment if synced else b"",
            )
        )

    async def heartbeat(self, call: KafkaCall) -> Reply:
        """Keep a member alive, and report a rebalance to the member."""
        request = call.request
        event = partial(
            Beat,
            member_id=request.member_id,
            instance_id=instance_of(call),
            generation=request.generation_id,
        )
        error, _ = await self._ask(call, lambda token: event(token=token))
        return Reply(HeartbeatResponse(version=call.version, error_code=error))

    async def leave(self, call: KafkaCall) -> Reply:
        """Remove members from a group."""
        request, version = call.request, call.version
        if version < MANY_SINCE:
            error = await self._left(call, request.member_id, None)
            return Reply(LeaveGroupResponse(version=version, error_code=error))
        members = [
            LeaveGroupResponse.MemberResponse(
                version=version,
                member_id=each.member_id,
                group_instance_id=each.group_instance_id,
                error_code=await self._left(call, each.member_id, each.group_instance_id),
            )
            for each in request.members
        ]
        return Reply(LeaveGroupResponse(version=version, error_code=KafkaError.NONE, members=members))

    async def _left(self, call: KafkaCall, member_id: str, instance_id: str | None) -> KafkaError:
        error, _ = await self._ask(
            call, lambda token: Leave(token=token, member_id=member_id, instance_id=instance_id)
        )
        return error

    async def _ask(
        self, call: KafkaCall, event_of: EventOf, *, joins: bool = False
    ) -> tuple[KafkaError, ClassicReply | None]:
        """Return the error and the reply of the group for a call."""
        group = call.request.group_id
        try:
            call.access.require(Operation.READ, Kind.GROUP, group)
            check_group_name(group)
            reply = await self._broker.groups.classic(group, event_of, joins=joins)
        except ProblemError as problem:
            return error_of(problem, Family.GROUP), None
        return KafkaError[reply.refusal] if isinstance(reply, Refused) else KafkaError.NONE, reply


def instance_of(call: KafkaCall) -> str | None:
    """Return the instance id of a static member; None for other members, and for versions without instance ids."""
    found: str | None = call.request.group_instance_id if call.version >= STATIC_SINCE[call.api.key] else None
    return found


def _join_response(call: KafkaCall, error: KafkaError, reply: ClassicReply | None) -> Any:
    version = call.version
    if not isinstance(reply, Joined):
        given = reply.member_id if isinstance(reply, Refused) else ""
        return JoinGroupResponse(
            version=version,
            error_code=error,
            generation_id=-1,
            protocol_type=None,
            protocol_name=None if version >= 7 else "",
            leader="",
            member_id=given or call.request.member_id,
            members=[],
        )
    return JoinGroupResponse(
        version=version,
        error_code=KafkaError.NONE,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        leader=reply.leader,
        skip_assignment=reply.skips_assignment,
        member_id=reply.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                version=version,
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                metadata=each.subscription,
            )
            for each in reply.members
        ],
    )
