"""Consumer groups: members, committed offsets, lists, descriptions, lag.

Callers: ``application`` for the routes named in ``endpoints``. The group's coordinator decides which member owns a
partition and whether an offset may be committed; this module handles bodies, parameters and statuses.
``group_forwarding`` sends every call about one group to the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

from msgspec import UNSET, UnsetType

from fairlead_api.bodies.group_requests import CommitRequest, HeartbeatRequest, ResetRequest
from fairlead_api.bodies.json_bodies import decode_request
from fairlead_api.bodies.metadata import Page
from fairlead_broker.runtime import Broker
from fairlead_broker.server.http.call import ADMIN_BYTES_MAX, Call, Endpoint
from fairlead_broker.server.http.paging import cursor_of, name_behind
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.server.routing.group_forwarding import Answered, AtCoordinator

COMMIT_BYTES_MAX: Final = 8 << 20
"""Maximum number of bytes of a commit's body: enough for 10,000 partitions with metadata of the maximum length."""


class _Entry(Protocol):
    """Entry of one partition in an answer; the entry may contain a problem."""

    @property
    def problem(self) -> dict[str, object] | UnsetType: ...


class GroupCalls:
    """Endpoints of the calls about consumer groups."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        at = AtCoordinator(self._broker, self._forwarding)
        return {
            "list_groups": self.list_groups,
            "describe_group": at.endpoint(self.describe_group),
            "delete_group": at.endpoint(self.delete_group),
            "group_lag": at.endpoint(self.group_lag),
            "heartbeat": at.endpoint(self.heartbeat, body_bytes_max=ADMIN_BYTES_MAX),
            "leave_group": at.endpoint(self.leave_group),
            "committed_offsets": at.endpoint(self.committed_offsets),
            "commit_offsets": at.endpoint(self.commit_offsets, body_bytes_max=COMMIT_BYTES_MAX),
            "delete_offsets": at.endpoint(self.delete_offsets),
            "reset_offsets": at.endpoint(self.reset_offsets, body_bytes_max=ADMIN_BYTES_MAX),
        }

    async def list_groups(self, call: Call) -> None:
        """``GET /v1/groups``, in the order of the store; any broker can answer."""
        after = call.query.text_or_none("after")
        listing = await self._broker.groups.listing(
            None if after is None else name_behind(after), call.query.integer("limit")
        )
        following = None if listing.next is None else cursor_of(listing.next)
        await call.answer_json(Page(items=listing.items, next=following))

    async def describe_group(self, call: Call, body: bytes) -> Answered:
        """``GET /v1/groups/{group}``."""
        del body
        return Answered(await self._broker.groups.describe(_group(call)))

    async def delete_group(self, call: Call, body: bytes) -> Answered:
        """``DELETE /v1/groups/{group}``."""
        del body
        await self._broker.groups.delete(_group(call))
        return Answered(None, HTTPStatus.NO_CONTENT)

    async def group_lag(self, call: Call, body: bytes) -> Answered:
        """``GET /v1/groups/{group}/lag``."""
        del body
        return Answered(await self._broker.groups.lag(_group(call)))

    async def heartbeat(self, call: Call, body: bytes) -> Answered:
        """``PUT /v1/groups/{group}/members/{member}``."""
        # If a JSON key is repeated, the last value is used, as on every hot path. A check for repeated keys would parse
        # the body again.
        request = decode_request(HeartbeatRequest, body, unique_keys=False)
        return Answered(await self._broker.groups.heartbeat(_group(call), _member(call), request))

    async def leave_group(self, call: Call, body: bytes) -> Answered:
        """``DELETE /v1/groups/{group}/members/{member}``."""
        del body
        await self._broker.groups.leave(_group(call), _member(call), static=call.query.flag("static"))
        return Answered(None, HTTPStatus.NO_CONTENT)

    async def committed_offsets(self, call: Call, body: bytes) -> Answered:
        """``GET /v1/groups/{group}/offsets``."""
        del body
        return Answered(await self._broker.groups.offsets(_group(call), call.query.names("topics")))

    async def commit_offsets(self, call: Call, body: bytes) -> Answered:
        """``PUT /v1/groups/{group}/offsets``."""
        # As in `heartbeat`, the body is not checked for repeated keys.
        request = decode_request(CommitRequest, body, unique_keys=False)
        answer = await self._broker.groups.commit(_group(call), request)
        return Answered(answer, _status(answer.offsets))

    async def delete_offsets(self, call: Call, body: bytes) -> Answered:
        """``DELETE /v1/groups/{group}/offsets``."""
        del body
        names = call.query.names("topics")
        return Answered(await self._broker.groups.delete_offsets(_group(call), names))

    async def reset_offsets(self, call: Call, body: bytes) -> Answered:
        """``POST /v1/groups/{group}/offsets:reset``."""
        request = decode_request(ResetRequest, body)
        dry_run = call.query.flag("dry_run")
        answer = await self._broker.groups.reset(_group(call), request, dry_run=dry_run)
        return Answered(answer, _status(answer.offsets))


def _group(call: Call) -> str:
    """Return the name of the group in the path, which is checked against the name rule before the endpoint runs."""
    return call.parameters["group"]


def _member(call: Call) -> str:
    """Return the id of the member in the path, which is checked against the name rule before the endpoint runs."""
    return call.parameters["member"]


def _status(entries: Iterable[_Entry]) -> int:
    """Return the status of an answer with one entry per partition: 207 if any partition was refused, otherwise 200."""
    refused = any(entry.problem is not UNSET for entry in entries)
    return HTTPStatus.MULTI_STATUS if refused else HTTPStatus.OK
