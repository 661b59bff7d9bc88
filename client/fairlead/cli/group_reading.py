"""`fairlead consume -g`: a group member that commits exactly the records that the command has printed.

`consume` uses this module. The module must not depend on how a record is printed.
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
from fairlead_api.bodies.requests import Isolation

COMMIT_SECONDS: Final = 1.0
"""Seconds between commits of printed records. If the process is killed, the records printed since the last commit are
printed again; after Ctrl-C, no record is printed again."""
LOOK_SECONDS: Final = 0.2
"""Seconds between two checks of whether the end offsets are reached, if the command stops at the end of the log."""

Printer = Callable[[ConsumerBatch, int | None], int]
"""Function that prints a batch, or only its first records, and returns the offset after the last printed record."""


class GroupReading:
    """Reading of one group member, from joining to leaving the group; `run` starts the member."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        start: Literal["earliest", "latest"],
        print_batch: Printer,
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        self._consumer = Consumer(
            bootstrap,
            group=group,
            topics=[topic],
            start=start,
            # Commits cover printed records instead of whole batches, because `-n` may stop in the middle of a batch.
            commit="manual",
            isolation=isolation,
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
        """Offsets after printed records that are not committed yet."""

    async def run(self, *, count: int | None, exit_at_end: bool) -> None:
        """Print records until `count` records are printed, or until the end offsets seen at the assignment are reached.

        Raises `TopicNotFoundError`.
        """
        async with self._admin:
            # A group waits for missing topics. On a command line a missing topic is probably a misspelt name, so the
            # command does not join.
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
        """Return whether this member has read all its partitions; the partitions are known once the group is stable."""
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
            # The position is committed even without records, so that the group continues at this position next time.
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
            # The member joins again; the new owner of the partitions prints the records since the last commit again.
            typer.echo(f"not committed: {error}", err=True)
        if lost:
            message = f"the group reassigned {', '.join(lost)} before the printed records were committed"
            typer.echo(message, err=True)
        for place, offset in list(offsets.items()):
            if self._printed.get(place) == offset:
                del self._printed[place]


def _count(assignment: Sequence[AssignedPartitions]) -> int:
    return sum(len(each.partitions) for each in assignment)
