"""`fairlead consume -g`: a member of a group that commits what it has printed, and nothing else.

Used by `consume`. Knows nothing of how a record is printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Literal

import typer

from fairlead import Admin, Consumer, ConsumerBatch, TopicPartition
from fairlead.cli.session import RETRY_TIMEOUT
from fairlead.errors import ClusterError
from fairlead.group.member import is_fenced
from fairlead_api.bodies.group_answers import AssignedPartitions

COMMIT_SECONDS: Final = 1.0
"""What was printed is committed so often; a kill prints the records of this time again, a Ctrl-C none."""
LOOK_SECONDS: Final = 0.2
"""Interval, with an end to stop at, of looking whether other members have read the rest."""

Printer = Callable[[ConsumerBatch, int | None], int]
"""Prints a batch, or as many of its first records; returns the offset after the last one."""


class GroupReading:
    """One member's reading, from joining to leaving. Open it with `run`."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        start: Literal["earliest", "latest"],
        print_batch: Printer,
    ) -> None:
        self._consumer = Consumer(
            bootstrap,
            group=group,
            topics=[topic],
            start=start,
            # What is printed decides, not what was taken: `-n` may end in the middle of a batch.
            commit="manual",
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            retry_timeout=RETRY_TIMEOUT,
        )
        self._admin = Admin(bootstrap, retry_timeout=RETRY_TIMEOUT)
        self._group = group
        self._topic = topic
        self._print_batch = print_batch
        self._ends: dict[TopicPartition, int] = {}
        self._printed: dict[TopicPartition, int] = {}
        """Printed positions that are not committed yet."""

    async def run(self, *, count: int | None, exit_at_end: bool) -> None:
        """Print until told to stop: after `count` records, or at the ends that were seen when partitions came.

        Raises `TopicNotFoundError`.
        """
        async with self._admin:
            # A group waits for missing topics; at a prompt it is a misspelt name, and the command does not join.
            await self._admin.describe_topic(self._topic)
            async with self._consumer:
                try:
                    await self._read(count, exit_at_end=exit_at_end)
                finally:
                    await self._commit(dict(self._printed))

    async def _read(self, left: int | None, *, exit_at_end: bool) -> None:
        loop = asyncio.get_running_loop()
        committed_at = loop.time()
        wait = timedelta(seconds=LOOK_SECONDS if exit_at_end else COMMIT_SECONDS)
        while left != 0 and not (exit_at_end and await self._is_at_end()):
            batch = await self._consumer.next_batch(wait)
            if batch is not None:
                left = self._print(batch, left)
            if batch is None or loop.time() - committed_at >= COMMIT_SECONDS:
                await self._commit(dict(self._printed))
                committed_at = loop.time()

    def _print(self, batch: ConsumerBatch, left: int | None) -> int | None:
        following = self._print_batch(batch, left)
        self._printed[batch.topic_partition] = following
        return None if left is None else left - sum(offset < following for offset in batch.offsets)

    async def _is_at_end(self) -> bool:
        """Whether everything that is this member's was read; what that is, the group knows once it is stable."""
        if self._consumer.membership.state != "stable" or any(
            self._consumer.position(place) < self._ends.get(place, 0) for place in self._consumer.assignment
        ):
            return False
        group = await self._admin.describe_group(self._group)
        own = self._consumer.membership.member_id
        assigned = [member.assignment for member in group.members if member.member_id == own]
        return (
            group.state == "stable"
            and bool(assigned)
            and _count(assigned[0]) == len(self._consumer.assignment)
        )

    async def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        ends = await self._consumer.end_offsets()
        for place in partitions:
            self._ends.setdefault(place, ends[place])
            # Committed even if nothing comes: the group goes on from here next time.
            self._printed.setdefault(place, self._consumer.position(place))

    async def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._commit({place: self._printed[place] for place in partitions & self._printed.keys()})

    async def _commit(self, offsets: dict[TopicPartition, int]) -> None:
        kept = {place: offset for place, offset in offsets.items() if place in self._consumer.assignment}
        lost = sorted(str(place) for place in offsets.keys() - kept.keys())
        try:
            if kept:
                await self._consumer.commit(kept)
        except ClusterError as error:
            if not is_fenced(error):
                raise
            # The member joins again; the new owner prints again what was printed since the last commit.
            typer.echo(f"not committed: {error}", err=True)
        if lost:
            message = f"the group gave away {', '.join(lost)} before what was printed was committed"
            typer.echo(message, err=True)
        for place, offset in list(offsets.items()):
            if self._printed.get(place) == offset:
                del self._printed[place]


def _count(assignment: Sequence[AssignedPartitions]) -> int:
    return sum(len(each.partitions) for each in assignment)
