"""The admin calls about consumer groups: list, describe, lag, offsets, reset, delete.

The base of `Admin`, which opens the connections. Any broker takes the calls and passes them on to the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias
from urllib.parse import quote

from msgspec import UNSET

from fairlead.connection.simple_calls import SimpleCalls
from fairlead.connection.transport import Query
from fairlead.errors import GroupNotFoundError, error_of
from fairlead.group.calls import commit_errors
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import (
    CommitAnswer,
    CommittedOffset,
    GroupDescription,
    GroupListing,
    GroupSummary,
    LagAnswer,
    OffsetsAnswer,
    ResetAnswer,
)
from fairlead_api.bodies.group_requests import (
    CommitRequest,
    OffsetCommit,
    ResetKind,
    ResetPartition,
    ResetRequest,
    ResetTarget,
)
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError

ResetTo: TypeAlias = Literal["earliest", "latest"] | ResetTarget

GROUPS_PATH: Final = "/v1/groups"


class GroupAdmin(SimpleCalls):
    """Looks after consumer groups."""

    async def list_groups(self) -> list[GroupSummary]:
        """Return every consumer group and the broker that coordinates it, in order of names."""
        return [group async for group in self._pages(GROUPS_PATH, "list groups", GroupListing)]

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group with its members and what they own. Raises `GroupNotFoundError`."""
        return await self._call("GET", _path(group), f"describe group {group}", GroupDescription)

    async def group_lag(self, group: str) -> LagAnswer:
        """Return how far a group is behind, in records and seconds. Raises `GroupNotFoundError`."""
        return await self._call("GET", f"{_path(group)}/lag", f"lag of group {group}", LagAnswer)

    async def group_offsets(
        self, group: str, topics: str | Iterable[str] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, of these topics or of all. Raises `GroupNotFoundError`."""
        subject = f"offsets of group {group}"
        answer = await self._call(
            "GET", f"{_path(group)}/offsets", subject, OffsetsAnswer, query=_topics(topics)
        )
        return _by_place(answer)

    async def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group that has no members; without a group of that name there is one then.

        Raises `GroupNotEmptyError`, and the error of the first partition that was not stored.
        """
        entries = tuple(
            OffsetCommit(topic=place.topic, partition=place.partition, offset=offset)
            for place, offset in offsets.items()
        )
        subject = f"commit offsets of group {group}"
        try:
            request = CommitRequest(offsets=entries)
        except ProblemError as problem:
            raise error_of(problem, subject=subject) from problem
        answer = await self._call("PUT", f"{_path(group)}/offsets", subject, CommitAnswer, body=request)
        for error in commit_errors(answer, subject, None).values():
            raise error

    async def delete_group_offsets(
        self, group: str, topics: str | Iterable[str] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Forget the committed offsets of topics that no member reads; returns them as they were.

        Raises `GroupNotFoundError`, `GroupNotEmptyError`.
        """
        subject = f"delete offsets of group {group}"
        answer = await self._call(
            "DELETE", f"{_path(group)}/offsets", subject, OffsetsAnswer, query=_topics(topics)
        )
        return _by_place(answer)

    async def reset_group_offsets(
        self,
        group: str,
        to: ResetTo,
        topics: str | Iterable[str | TopicPartition | ResetPartition] | None = None,
        *,
        dry_run: bool = False,
    ) -> ResetAnswer:
        """Move the committed offsets of a group without members; with `dry_run` only say where they would go.

        `to` is `"earliest"`, `"latest"` or a `ResetTarget`: a timestamp, a duration back from now, a shift or an
        offset. Without `topics`, everything that the group has committed; with them there need be no such group yet,
        and is one then. Entries of the answer with a `problem` stay as they were. Raises `GroupNotFoundError`,
        `GroupNotEmptyError`.
        """
        subject = f"reset offsets of group {group}"
        try:
            chosen = [topics] if isinstance(topics, str) else topics
            request = ResetRequest(to=to, topics=None if chosen is None else tuple(map(_chosen, chosen)))
        except ProblemError as problem:
            raise error_of(problem, subject=subject) from problem
        # A shift that is asked for twice would go twice as far: it is looked up, and then committed as offsets.
        shifts = request.position.kind is ResetKind.SHIFT
        query: Query = {"dry_run": "true"} if dry_run or shifts else {}
        path = f"{_path(group)}/offsets:reset"
        answer = await self._call("POST", path, subject, ResetAnswer, body=request, query=query)
        if shifts and not dry_run:
            found = {
                TopicPartition(entry.topic, entry.partition): entry.after
                for entry in answer.offsets
                if entry.after is not None and entry.problem is UNSET
            }
            if found:
                await self.commit_group_offsets(group, found)
        return answer

    async def delete_group(self, group: str) -> None:
        """Delete a group without members, and its committed offsets.

        Raises `GroupNotFoundError`, `GroupNotEmptyError`.
        """
        await self._delete(_path(group), f"delete group {group}", GroupNotFoundError)


def _path(group: str) -> str:
    try:
        return f"{GROUPS_PATH}/{quote(check_group_name(group), safe='')}"
    except ProblemError as problem:
        raise error_of(problem, subject=f"group {group!r}") from problem


def _topics(topics: str | Iterable[str] | None) -> Query:
    names = [topics] if isinstance(topics, str) else topics
    return {} if names is None else {"topics": ",".join(names)}


def _chosen(topic: str | TopicPartition | ResetPartition) -> str | ResetPartition:
    if isinstance(topic, TopicPartition):
        return ResetPartition(topic=topic.topic, partition=topic.partition)
    return topic


def _by_place(answer: OffsetsAnswer) -> dict[TopicPartition, CommittedOffset]:
    return {TopicPartition(entry.topic, entry.partition): entry for entry in answer.offsets}
