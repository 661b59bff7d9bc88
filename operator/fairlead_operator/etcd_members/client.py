"""Client of etcd's JSON gateway: lists members, reads their health, and changes one member at a time.

A call is sent to the URL of one member, has a deadline and is not retried: the next pass reads the members again and
makes a new plan. The client validates answers and converts them to values of `plan.etcd_observed`. Calls to members
with TLS use a client of `with_tls`. The client must not make decisions based on an answer.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from fairlead_operator.etcd_members.errors import EtcdUnavailable, error_of
from fairlead_operator.plan.etcd_observed import NO_SPACE, EtcdMember, EtcdStatus

DEADLINE_SECONDS: Final = 4.0
"""Deadline of one call. A member without a leader answers only after its own timeout of up to 7 s, so a call to that
member times out."""


class Connections:
    """Connections to members, which clients with and without TLS share."""

    def __init__(self, deadline_seconds: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=deadline_seconds)
        self._session: aiohttp.ClientSession | None = None

    def opened(self) -> aiohttp.ClientSession:
        """Return the session, which the first call opens."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        return self._session

    async def close(self) -> None:
        """Close all connections. Calling `close` again has no effect."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class EtcdMembersClient:
    """Client for the etcd members of all clusters.

    The client is opened once, and is closed with `close` or by `async with`.
    """

    def __init__(
        self,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        connections: Connections | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: TLS context for members that use TLS."""
        self._connections = connections or Connections(deadline_seconds)
        self._tls = tls

    def with_tls(self, context: ssl.SSLContext) -> EtcdMembersClient:
        """Return a client for members with TLS; it shares this client's connections and is not closed separately."""
        return EtcdMembersClient(connections=self._connections, tls=context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Calling `close` again has no effect."""
        await self._connections.close()

    async def members(self, url: str) -> tuple[EtcdMember, ...]:
        """Return the member list as confirmed by a majority, ordered by id. Raises `EtcdUnavailable`.

        A member that cannot reach a majority does not answer this call; a learner refuses the call (`EtcdRefused`).
        """
        answer = await self._call(url, "cluster/member/list", {"linearizable": True})
        return _members(url, answer)

    async def status(self, url: str) -> EtcdStatus:
        """Return the status of a member; the call needs no majority. Raises `EtcdUnavailable`."""
        answer = await self._call(url, "maintenance/status", {})
        try:
            return EtcdStatus(
                member_id=int(answer["header"]["member_id"]),
                leader_id=int(answer.get("leader", 0)),
                learner=bool(answer.get("isLearner", False)),
                version=str(answer.get("version", "")),
                errors=tuple(str(each) for each in answer.get("errors") or ()),
                store_bytes=int(answer.get("dbSize", 0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _nonsense(url, answer) from error

    async def add_learner(self, url: str, peer_url: str) -> None:
        """Add a member as a learner, which does not vote yet.

        The pod of the learner must start with the new member list.

        Raises `EtcdRefused` while another change is in progress or while members are missing, and `EtcdUnavailable` if
        the member does not answer.
        """
        await self._call(url, "cluster/member/add", {"peerURLs": [peer_url], "isLearner": True})

    async def promote(self, url: str, member_id: int) -> None:
        """Make a learner a voter. Raises `LearnerNotInSync`, `MemberNotFound`, `EtcdRefused`, `EtcdUnavailable`."""
        await self._call(url, "cluster/member/promote", {"ID": str(member_id)})

    async def remove(self, url: str, member_id: int) -> None:
        """Remove a member permanently. Raises `MemberNotFound`, `EtcdRefused`, `EtcdUnavailable`.

        etcd refuses the removal if fewer than a majority of the remaining members are started.
        """
        await self._call(url, "cluster/member/remove", {"ID": str(member_id)})

    async def move(self, url: str, member_id: int, peer_url: str) -> None:
        """Change the peer URL of a member. Raises `MemberNotFound`, `EtcdRefused`, `EtcdUnavailable`."""
        await self._call(url, "cluster/member/update", {"ID": str(member_id), "peerURLs": [peer_url]})

    async def transfer_leadership(self, url: str, target_id: int) -> None:
        """Transfer leadership from the member at `url` to another member. Raises `EtcdRefused`, `EtcdUnavailable`."""
        await self._call(url, "maintenance/transfer-leadership", {"targetID": str(target_id)})

    async def disarm_no_space(self, url: str) -> None:
        """Disarm the `NOSPACE` alarm of every member. Raises `EtcdRefused`, `EtcdUnavailable`."""
        raised = await self._call(url, "maintenance/alarm", {"action": "GET", "alarm": NO_SPACE})
        for alarm in raised.get("alarms") or ():
            member = {"memberID": str(alarm["memberID"]), "alarm": NO_SPACE}
            await self._call(url, "maintenance/alarm", {"action": "DEACTIVATE", **member})

    async def _call(self, url: str, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        where = f"etcd at {url}, {path}"
        try:
            session = self._connections.opened()
            async with session.post(f"{url}/v3/{path}", json=body, ssl=self._tls or True) as response:
                status, answer = response.status, _object(where, await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = f"{where}: {error!r}"
            raise EtcdUnavailable(said) from error
        if status == 200:
            return answer
        raise error_of(
            where, _integer(answer.get("code")), str(answer.get("message") or answer.get("error") or "")
        )


def _object(where: str, text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise _nonsense(where, text) from error
    if not isinstance(answer, dict):
        raise _nonsense(where, text)
    return answer


def _members(url: str, answer: Mapping[str, Any]) -> tuple[EtcdMember, ...]:
    try:
        listed = [_member(entry) for entry in answer["members"]]
    except (KeyError, TypeError, ValueError) as error:
        raise _nonsense(url, answer) from error
    return tuple(sorted(listed, key=lambda member: member.member_id))


def _member(entry: Mapping[str, Any]) -> EtcdMember:
    urls: Sequence[object] = entry.get("peerURLs") or ()
    return EtcdMember(
        member_id=int(entry["ID"]),
        name=str(entry.get("name", "")),
        peer_urls=tuple(str(each) for each in urls),
        learner=bool(entry.get("isLearner", False)),
    )


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _nonsense(where: str, answer: object) -> EtcdUnavailable:
    return EtcdUnavailable(f"{where}: not a valid answer from etcd: {str(answer)[:200]}")
