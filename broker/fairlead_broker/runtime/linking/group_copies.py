"""Copies of the committed offsets of consumer groups, made by the controller for the mirrors of a link (rule L9).

An offset is never copied above the high watermark of the mirror: after a failover, a consumer reads at most the lag
again, and misses no record. A group that has members in this cluster keeps its own offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote
from weakref import WeakValueDictionary

import msgspec

from fairlead_api.bodies.group_answers import CommitAnswer, CommittedOffset, GroupListing, OffsetsAnswer
from fairlead_api.bodies.group_requests import CommitRequest, OffsetCommit
from fairlead_api.bodies.media_types import JSON
from fairlead_api.identifiers import Offset, PartitionIndex, TopicId, TopicIdPartition, is_group_name
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.linking.link_admin import LinkAdmin
from fairlead_broker.links.selection import is_chosen
from fairlead_broker.links.switching import CopiedTo
from fairlead_broker.peers.peers import SHORT_CALL_SECONDS_MAX, Peers, PeerUnavailable, problem_of
from fairlead_broker.registry.link_records import LinkRecord
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.linking.links import mirror_ends
from fairlead_broker.runtime.linking.mirror_records import COPIES
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.sources.sources import Sources
from fairlead_broker.telemetry import Log

_Copied = dict[tuple[str, TopicIdPartition], Offset]


class GroupCopies:
    """Copier of committed offsets."""

    def __init__(
        self,
        admin: LinkAdmin,
        sources: Sources,
        groups: Groups,
        positions: Positions,
        peers: Peers,
        count: Callable[[str, int], None],
        log: Log,
    ) -> None:
        """`count` counts copied offsets by link."""
        self._admin = admin
        self._sources = sources
        self._groups = groups
        self._positions = positions
        self._peers = peers
        self._count = count
        self._log = log
        self.committing = asyncio.Lock()
        """Lock that is held while copied offsets are committed, and by a promotion while it begins. Offsets that were
        read before the promotion must not replace offsets that consumers commit after it.
        """
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Lock of each link: offsets are committed in the order in which they were read."""
        self._copied: dict[str, _Copied] = {}
        """Offsets that this process has copied, by link. An unchanged offset is not copied again."""

    async def copy(self, link: str) -> None:
        """Copy the offsets of a link's groups once.

        Raises `SourceUnreachable`, and a `ProblemError` for a refusal by the source or for `link_source_changed`.
        """
        record = self._admin.required(link).value
        if record.groups.include:
            async with self._turns.setdefault(link, asyncio.Lock()):
                await self._copy(link, record)

    async def _copy(self, link: str, record: LinkRecord) -> None:
        source = await self._sources.checked(link, record)
        names = {
            topic.value.topic_id: (name, topic.value.partitions)
            for name, topic in self._admin.mirrors(link).items()
        }
        ends = await mirror_ends(
            self._positions,
            [
                TopicIdPartition(topic_id, PartitionIndex(index))
                for topic_id, (_, partitions) in names.items()
                for index in range(partitions)
            ],
        )
        for each in await source.items("/v1/groups", GroupListing):
            if is_group_name(each.group) and is_chosen(record.groups, each.group):
                answer = await source.get(f"/v1/groups/{quote(each.group, safe='')}/offsets", OffsetsAnswer)
                async with self.committing:
                    await self._copy_group(link, each.group, answer.offsets, names, ends)

    async def _copy_group(
        self,
        link: str,
        group: str,
        offsets: list[CommittedOffset],
        names: Mapping[TopicId, tuple[str, int]],
        ends: Mapping[TopicIdPartition, CopiedTo],
    ) -> None:
        copied = self._copied.setdefault(link, {})
        mirrored = {
            topic.value.topic_id
            for topic in self._admin.mirrors(link).values()
            if topic.value.mirror is not None and topic.value.mirror.state in COPIES
        }
        commits: dict[tuple[str, TopicIdPartition], OffsetCommit] = {}
        for each in offsets:
            key = TopicIdPartition(TopicId(each.topic_id), PartitionIndex(each.partition))
            end = ends.get(key)
            if end is None or key.topic_id not in mirrored:
                continue
            offset = min(Offset(each.offset), end.end_offset)
            if copied.get((group, key)) != offset:
                commit = {
                    "topic": names[key.topic_id][0],
                    "topic_id": key.topic_id,
                    "partition": each.partition,
                    "offset": offset,
                    "leader_epoch": each.leader_epoch if offset == each.offset else None,
                    "metadata": each.metadata,
                }
                # What no client of this cluster could commit is not copied either.
                with suppress(msgspec.ValidationError, ProblemError):
                    commits[group, key] = msgspec.convert(commit, OffsetCommit)
        if not commits:
            return
        try:
            answer = await self._commit(group, CommitRequest(offsets=tuple(commits.values())))
        except (ProblemError, PeerUnavailable) as error:
            # The group has members here, or its coordinator changes. The next pass copies its offsets again.
            self._log.info("offsets of a group not copied", link=link, group=group, reason=str(error))
            return
        stored = [
            (place, commit)
            for (place, commit), result in zip(commits.items(), answer.offsets, strict=True)
            if result.problem is msgspec.UNSET
        ]
        copied.update({place: Offset(commit.offset) for place, commit in stored})
        self._count(link, len(stored))

    async def _commit(self, group: str, request: CommitRequest) -> CommitAnswer:
        """Commit offsets at the coordinator of a group, as a program that is not a member."""
        coordinator = await self._groups.coordinator_elsewhere(group)
        if coordinator is None:
            return await self._groups.commit(group, request)
        answer = await self._peers.call(
            coordinator,
            "PUT",
            f"/v1/groups/{quote(group, safe='')}/offsets",
            headers=[("content-type", JSON)],
            body=msgspec.json.encode(request),
            timeout_seconds=SHORT_CALL_SECONDS_MAX,
        )
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(answer)
        return msgspec.json.decode(answer.body, type=CommitAnswer)
