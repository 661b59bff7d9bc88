"""Observes a consumer group from outside: descriptions of brokers, records of the store, and their invariants."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyreqwest.exceptions import PyreqwestError

from chaos_cluster import Answer, ChaosCluster, call, http_client, pause
from fairlead_api.bodies.group_answers import GroupDescription, LagAnswer, MemberDescription
from fairlead_broker.coordination.protocol import CoordinationError
from fairlead_broker.registry.group_records import MemberRecord
from fairlead_broker.registry.keys import GroupKeys, Keys
from fairlead_broker.registry.records import decode

if TYPE_CHECKING:
    from pyreqwest.client import Client

CLUSTER_NAME: Final = "fairlead"
WAIT_SECONDS: Final = 60.0
SAMPLE_SECONDS: Final = 0.02

Place = tuple[str, int]
"""Topic, by name or by id, and partition."""


def owned(member: MemberDescription) -> Iterator[Place]:
    """Yield the partitions that a member owns: assigned partitions and partitions not yet revoked."""
    for each in (*member.assignment, *member.revoking):
        for partition in each.partitions:
            yield each.topic, partition


def owned_twice(description: GroupDescription) -> list[Place]:
    """Return the partitions with more than one owner; a correct group has none."""
    count = Counter(place for member in description.members for place in owned(member))
    return [place for place, owners in count.items() if owners > 1]


def is_settled(members: int, places: set[Place]) -> Callable[[GroupDescription], bool]:
    """Return whether `members` members have reached their assignment and share exactly these partitions."""

    def check(description: GroupDescription) -> bool:
        found = [place for member in description.members for place in owned(member)]
        return (
            description.state == "stable"
            and len(description.members) == members
            and len(found) == len(places)
            and set(found) == places
        )

    return check


def places_of(topic: str, partitions: int) -> set[Place]:
    """Return all partitions of a topic."""
    return {(topic, partition) for partition in range(partitions)}


async def ask_any(cluster: ChaosCluster, client: Client, path: str) -> Answer | None:
    """Request a path from one running broker after another until a broker answers 200; return None if none does."""
    for node in cluster.alive():
        with suppress(PyreqwestError):
            answer = await call(client, "GET", f"{node.url}{path}", seconds=5.0)
            if answer.status == 200:
                return answer
    return None


async def wait_for_group(
    cluster: ChaosCluster,
    group: str,
    check: Callable[[GroupDescription], bool],
    seconds: float = WAIT_SECONDS,
) -> GroupDescription:
    """Wait until a group satisfies a condition; raise `TimeoutError` with its last state."""
    description: GroupDescription | None = None
    deadline = asyncio.get_running_loop().time() + seconds
    async with http_client() as client:
        while asyncio.get_running_loop().time() < deadline:
            answer = await ask_any(cluster, client, f"/v1/groups/{group}")
            if answer is not None:
                description = msgspec.json.decode(answer.body, type=GroupDescription)
                assert not owned_twice(description), description
                if check(description):
                    return description
            await pause(0.1)
    message = f"after {seconds} s the group is {description}"
    raise TimeoutError(message)


async def wait_for_lag(
    cluster: ChaosCluster, group: str, places: set[Place], seconds: float = WAIT_SECONDS
) -> None:
    """Wait until a group has committed the ends of all these partitions; raise `TimeoutError` with its last lag."""
    lag: LagAnswer | None = None
    deadline = asyncio.get_running_loop().time() + seconds
    async with http_client() as client:
        while asyncio.get_running_loop().time() < deadline:
            answer = await ask_any(cluster, client, f"/v1/groups/{group}/lag")
            if answer is not None:
                lag = msgspec.json.decode(answer.body, type=LagAnswer)
                if {(each.topic, each.partition) for each in lag.lag if each.lag_records == 0} >= places:
                    return
            await pause(0.2)
    message = f"after {seconds} s the lag is {lag}"
    raise TimeoutError(message)


class OwnershipWatch:
    """Repeatedly reads the owners of partitions from brokers and from the store; no partition may have two owners."""

    def __init__(self, cluster: ChaosCluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self._urls = itertools.cycle(cluster.urls)
        self.stopping = asyncio.Event()
        self.described = 0
        """Number of descriptions that brokers returned."""
        self.read = 0
        """Number of reads of the member records."""
        self.findings: list[str] = []

    async def run(self) -> None:
        """Read owners until stopped."""
        async with asyncio.TaskGroup() as tasks:
            for _ in self._cluster.urls:
                tasks.create_task(self._ask())
            if self._cluster.etcd is not None:
                tasks.create_task(self._read())

    async def _ask(self) -> None:
        async with http_client() as client:
            while not self.stopping.is_set():
                with suppress(PyreqwestError):
                    url = f"{next(self._urls)}/v1/groups/{self._group}"
                    answer = await call(client, "GET", url, seconds=3.0)
                    if answer.status == 200:
                        description = msgspec.json.decode(answer.body, type=GroupDescription)
                        self.described += 1
                        self.findings += [
                            f"told: {place} in {description}" for place in owned_twice(description)
                        ]
                await pause(SAMPLE_SECONDS)

    async def _read(self) -> None:
        assert self._cluster.etcd is not None
        store = self._cluster.etcd.client()
        prefix = GroupKeys(Keys(CLUSTER_NAME), self._group).members
        while not self.stopping.is_set():
            with suppress(CoordinationError):
                page = await store.list(prefix)
                owners: defaultdict[Place, list[str]] = defaultdict(list)
                for item in page.items:
                    record = decode(item.key, item.value, MemberRecord)
                    for topic, partitions in (*record.assigned.items(), *record.revoking.items()):
                        for partition in partitions:
                            owners[topic, partition].append(item.key)
                self.read += bool(page.items)
                self.findings += [f"read: {place}: {who}" for place, who in owners.items() if len(who) > 1]
            await pause(SAMPLE_SECONDS)


def deliveries(events: list[dict[str, Any]], group: str) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """Return the processes of a group that received each record, by partition and offset, each with its event."""
    found: defaultdict[str, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    for number, event in enumerate(events):
        if event["op"] == "poll" and event.get("group") == group:
            for offset, _ in event["records"]:
                found[event["key"]].setdefault(offset, []).append((number, event["process"]))
    return found


def assert_consumed_by(events: list[dict[str, Any]], group: str, *, unheard: bool = False) -> int:
    """Fail unless the group received every record, and received a record again only after its partition moved.

    `unheard`: members may have been cut off for longer than their session. A member that is cut off reads prefetched
    records until it learns that its partitions have another owner. From the committed epochs, the checker verifies that
    a member that was cut off commits no prefetched records. Return how many records were delivered more than once.
    """
    given = deliveries(events, group)
    lost = [
        (event["key"], offset)
        for event in events
        if event["op"] == "poll" and event.get("final")
        for offset, _ in event["records"]
        if offset not in given.get(event["key"], {})
    ]
    assert not lost, f"{len(lost)} records were not delivered to a member, such as {lost[:5]}"
    starts = _starts(events)
    twice = 0
    for key, offsets in given.items():
        for offset, times in offsets.items():
            twice += len(times) > 1
            for (first, before), (second, process) in itertools.pairwise(times):
                mine, theirs = (
                    _last(starts.get((who, key), ()), at) for who, at in ((process, second), (before, first))
                )
                moved = mine > first or (unheard and theirs > mine >= 0)
                assert moved, f"{key}: {offset} was delivered twice to process {process} without a move"
    return twice


def _last(numbers: Sequence[int], before: int) -> int:
    """Return the largest event number below a number, or -1 if all are larger."""
    return max((number for number in numbers if number < before), default=-1)


def _starts(events: list[dict[str, Any]]) -> dict[tuple[int, str], list[int]]:
    """Return the events in which a partition was assigned to a process, by process and partition."""
    starts: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for number, event in enumerate(events):
        if event["op"] == "assign":
            for key in event["keys"]:
                starts[event["process"], key].append(number)
    return starts
