"""The client's cached metadata of the cluster: the leader of each partition, refreshed by ETag, and calls to leaders.

The producer, the consumer and the admin client use this module. The metadata is refreshed when a problem requires a
refresh, when a name is missing or when the metadata is old. Concurrent callers that need a refresh share one request.
The module must not depend on what is sent to the leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from fairlead import clock
from fairlead.connection.moved_topics import MovedTopics
from fairlead.connection.transport import Answer, Call, Transport, decoded, json_call
from fairlead.errors import (
    FairleadError,
    PartitionNotFoundError,
    TopicNotFoundError,
    UnreachableError,
    error_of,
)
from fairlead.settings import KIB
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.metadata import BrokerDescription, ConfigDescription, Metadata, TopicMetadata
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import JSON, ProblemError

QUERY_BYTES_MAX: Final = 6 * KIB
"""Maximum bytes of topic names in a URL. If the names are longer, all topics are requested, because brokers and proxies
accept request heads of 8 to 32 KiB only."""
FOLLOW_SECONDS: Final = 5.0
"""Age at which a client that follows moved topics refreshes its metadata. A reader of a topic that was handed over gets
no error that would tell it."""
DOUBT_SECONDS: Final = 1.0
"""Seconds without an answer after which the metadata is checked. Answers rarely take longer, because an overloaded
broker refuses requests instead."""

CHECK_SECONDS: Final = 0.25
"""Seconds between two checks, which delay the next attempt by half of this time on average."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Metadata in one answer of a broker, indexed by topic and broker.

    `asked` contains the requested topics; a requested topic that is not in `topics` does not exist. `etag` is the
    entity tag of the answer that contained `topics`.
    """

    cluster_id: str = ""
    addresses: Mapping[int, str] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    etag: str | None = None
    taken_at: float = float("-inf")
    elsewhere: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Addresses of the brokers of another cluster, for each topic that was handed over to it."""

    def leader(self, topic: str, partition: int) -> str | None:
        """Return the address of a partition's leader; None if the partition has no known leader."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.partitions):
            return None
        leader = found.partitions[partition].leader
        return None if leader is None else self.elsewhere.get(topic, self.addresses).get(leader)

    def is_newer(self, other: Picture) -> bool:
        """Return whether any partition has a higher leader epoch in this metadata than in `other`."""
        return any(
            mine.leader_epoch > theirs.leader_epoch
            for name, topic in self.topics.items()
            if name in other.topics and other.topics[name].topic_id == topic.topic_id
            for mine, theirs in zip(topic.partitions, other.topics[name].partitions, strict=False)
        )


class MetadataCache:
    """Cache of the newest metadata, and the topics that the next metadata request should include."""

    def __init__(self, transport: Transport, *, by_topic: bool = True) -> None:
        """`by_topic`: whether the metadata shows each moved topic in its new cluster.

        Members of groups and producers with transactions depend on a coordinator, so they move with all of their topics
        (`move_home`).
        """
        self._transport = transport
        self._by_topic = by_topic
        self._wanted: set[str] = set()
        self._lock = asyncio.Lock()
        self._refreshes = 0
        self._answered_by = ""
        self._own = Picture()
        """Metadata of the client's own cluster."""
        self._moved = MovedTopics(transport)
        self.picture = Picture()
        """Metadata of the client's own cluster, with the moved topics as the other clusters describe them."""

    async def topic(self, name: str) -> TopicMetadata:
        """Return a topic, from the cluster if the cached metadata lacks the topic. Raises `TopicNotFoundError`."""
        return (await self.topics([name]))[name]

    async def topics(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        """Return topics by name, with one request for all topics that the cached metadata lacks."""
        wanted = {check_name(name) for name in names}
        if not wanted <= self.picture.topics.keys():
            new = wanted - self._wanted
            self._wanted |= wanted
            try:
                await self._refresh(compared=False)
            finally:
                # A topic that does not exist is not requested again.
                self._wanted -= new - self.picture.topics.keys()
        missing = sorted(wanted - self.picture.topics.keys())
        if missing:
            raise topic_not_found(missing[0])
        return {name: self.picture.topics[name] for name in wanted}

    def want(self, names: Iterable[str]) -> None:
        """Include these topics in the next metadata request."""
        self._wanted.update(names)

    def follow(self, topic: str, addresses: Iterable[str]) -> bool:
        """Follow a topic to another cluster as soon as its records are accepted there.

        Returns whether this client may do so.
        """
        return self._transport.settings.follow_moves and self._moved.announce(topic, addresses)

    def go_back(self, topic: str, broker: str | None) -> bool:
        """Handle the answer of a broker whose copy of a topic is a mirror; return whether its refused records may wait.

        If the broker belongs to the cluster to which the topic was followed, the next refresh looks the topic up in the
        client's own cluster.
        """
        return self._moved.go_back(topic, broker)

    @property
    def home(self) -> tuple[str, ...] | None:
        """Addresses of the other cluster to which all topics of this client have moved; None in all other cases."""
        return self._moved.home_of(self._own.topics)

    @property
    def is_moving(self) -> bool:
        """Whether a topic of this client is handed over to a cluster that this client does not call yet."""
        return self._moved.is_announced or any(
            topic.handed_over is not None and name not in self._moved.names
            for name, topic in self._own.topics.items()
        )

    def move_home(self, addresses: tuple[str, ...]) -> None:
        """Use another cluster from now on, in place of the client's own cluster."""
        self._transport.move_to(addresses)
        self._moved = MovedTopics(self._transport)
        self._own = self.picture = Picture()

    @property
    def is_old(self) -> bool:
        """Whether the metadata is old enough for a refresh even without an error."""
        settings = self._transport.settings
        age_max = settings.metadata_age_seconds_max
        if settings.follow_moves:
            age_max = min(age_max, FOLLOW_SECONDS)
        return bool(self._wanted) and clock.monotonic() - self.picture.taken_at > age_max

    async def refresh(self) -> None:
        """Refresh the metadata. Concurrent callers share the answer to one request."""
        await self._refresh(compared=True)

    async def _refresh(self, *, compared: bool) -> None:
        seen = self._refreshes
        async with self._lock:
            if self._refreshes != seen and self._wanted <= self.picture.asked:
                return
            before = self._own
            try:
                await self._fetch(frozenset(self._wanted))
                if compared and before.topics and self._own.topics is before.topics:
                    await self._ask_another()
            finally:
                await self._add_moved()
            self._refreshes += 1

    async def _fetch(self, names: frozenset[str]) -> None:
        """Fetch the metadata of these topics, leaving out topics that do not exist."""
        existing = names - self._moved.names if self._by_topic else names
        if names and not existing:
            self._own = replace(self._own, asked=names, taken_at=clock.monotonic())
            return
        while True:
            try:
                await self._ask(existing, names)
            except TopicNotFoundError as error:
                # The whole call fails if a topic is missing, and the problem names the topic.
                missing = existing & {error.data.get("topic")}
                if not missing:
                    raise
                existing -= missing
            else:
                self._wanted -= names - self._own.topics.keys() - self._moved.names
                return

    async def _add_moved(self) -> None:
        if self._transport.settings.follow_moves:
            await self._moved.refresh(self._own.topics)
        if not self._moved.names or not self._by_topic:
            self.picture = self._own
            return
        found = self._moved.found
        topics = {**self._own.topics, **found.topics}
        # A topic of a cluster that does not answer may exist, so it must not seem to be missing.
        unknown = self._moved.names - topics.keys()
        self.picture = replace(
            self._own, topics=topics, asked=self._own.asked - unknown, elsewhere=found.addresses
        )

    async def _ask(self, names: frozenset[str], asked: frozenset[str]) -> None:
        before = self._own
        known = before.etag is not None and before.topics.keys() == names
        answer = await self._transport.call(_call(names, before.etag if known else None))
        now = clock.monotonic()
        self._answered_by = answer.broker
        if answer.status == 304:
            self._own = replace(before, asked=asked, taken_at=now)
        else:
            self._take(self._picture_of(answer, names, asked, now))

    async def _ask_another(self) -> None:
        """Use another broker's metadata if that metadata is newer than the current metadata.

        A broker that cannot reach the coordination store, but can be reached by the client, returns the same old
        metadata forever. A client that reads from a broker with old metadata sees no error, but receives no new
        records.
        """
        before = self._own
        names = frozenset(before.topics)
        answer = await self._transport.second_opinion(_call(names, before.etag), self._answered_by)
        if answer is None or answer.status == 304:
            return
        other = self._picture_of(answer, names, before.asked, clock.monotonic())
        if other.is_newer(before):
            self._take(other)
            self._transport.prefer(answer.broker)

    def _picture_of(
        self, answer: Answer, names: frozenset[str], asked: frozenset[str], now: float
    ) -> Picture:
        metadata = decoded(answer, Metadata, "metadata")
        return Picture(
            cluster_id=metadata.cluster_id,
            addresses=self._addresses_of(metadata.brokers, answer.broker),
            # A request without names returns every topic, and only the requested topics are kept.
            topics={topic.name: topic for topic in metadata.topics if topic.name in names},
            asked=asked,
            etag=answer.etag,
            taken_at=now,
        )

    def _addresses_of(self, brokers: Iterable[BrokerDescription], answered_by: str) -> Mapping[int, str]:
        """Return the broker addresses that this client may use, leaving out brokers without an address."""
        if self._transport.settings.one_address:
            # The transport calls none of these addresses; they only distinguish the brokers.
            return {broker.id: broker.address or f"broker {broker.id}" for broker in brokers}
        # A broker that was called with TLS must not send the client to an address without TLS.
        is_secure = answered_by.startswith("https://")
        return {
            broker.id: broker.address.rstrip("/")
            for broker in brokers
            if broker.address is not None and (not is_secure or broker.address.startswith("https://"))
        }

    def _take(self, picture: Picture) -> None:
        self._own = picture
        self._transport.known_brokers = tuple(picture.addresses.values())


class LeaderCalls:
    """Calls of one client to the leaders of partitions, which end without an answer when another broker leads.

    A broker whose machine is cut off, or whose process is paused, keeps its connections and never answers, while the
    cluster elects other leaders. If an answer takes longer than expected, another broker is asked for metadata, and the
    call ends when the metadata shows another leader. A slow leader that still leads is never given up early.
    """

    def __init__(self, transport: Transport, metadata: MetadataCache) -> None:
        self._transport = transport
        self._metadata = metadata

    async def send(
        self, call: Call, leader: str, places: Sequence[tuple[str, int]], *, wait_seconds: float = 0.0
    ) -> Answer:
        """Send a call once to the leader of partitions, given as pairs of topic and partition.

        `wait_seconds` is the time for which the leader may delay its answer on purpose. Raises the errors of
        `Transport.send`, and `UnreachableError` if the call was ended because another broker leads the partitions.
        """
        loop = asyncio.get_running_loop()
        watch: asyncio.Task[None] | None = None

        def begin_watch() -> None:
            """Watch the metadata in a task, which only an overdue call needs."""
            nonlocal watch
            watch = loop.create_task(self._watch(leader, places, limit), name=f"doubt about {leader}")

        begun = loop.time()
        try:
            async with asyncio.timeout(None) as limit:
                timer = loop.call_later(wait_seconds + DOUBT_SECONDS, begin_watch)
                try:
                    return await self._transport.send(call, leader)
                finally:
                    timer.cancel()
                    if watch is not None:
                        watch.cancel()
        except TimeoutError as error:
            cause = f"no answer within {loop.time() - begun:.1f} s, and another broker leads"
            raise UnreachableError(call.subject, {leader: cause}, sent=True) from error

    async def _watch(self, leader: str, places: Sequence[tuple[str, int]], limit: asyncio.Timeout) -> None:
        """Refresh the metadata until another broker leads the partitions, then end the call."""
        while True:
            self._transport.doubt(leader)
            with suppress(FairleadError):
                await self._metadata.refresh()
            if self._is_replaced(leader, places):
                break
            await asyncio.sleep(CHECK_SECONDS)  # noqa: TID251 - the pause before the next check
        limit.reschedule(asyncio.get_running_loop().time())

    def _is_replaced(self, leader: str, places: Sequence[tuple[str, int]]) -> bool:
        """Return whether the broker leads none of the partitions, and at least one has another leader."""
        leaders = {self._metadata.picture.leader(*place) for place in places}
        return leader not in leaders and leaders != {None}


def _call(names: frozenset[str], etag: str | None) -> Call:
    listed = ",".join(sorted(names))
    return Call(
        method="GET",
        path="/v1/metadata",
        subject="metadata",
        query={"topics": listed} if 0 < len(listed) <= QUERY_BYTES_MAX else {},
        headers={} if etag is None else {"if-none-match": etag},
    )


def check_name(name: str) -> str:
    """Return the topic name if the name is allowed; otherwise raise `InvalidTopicNameError`, before any call."""
    try:
        return check_topic_name(name)
    except ProblemError as problem:
        raise error_of(problem, subject=f"topic {name!r}") from problem


def topic_not_found(name: str) -> TopicNotFoundError:
    """Return the error for a topic that the metadata does not list."""
    problem = ProblemError("topic_not_found", f"topic {name} does not exist", data={"topic": name})
    return TopicNotFoundError(problem, subject="metadata")


def partition_not_found(place: TopicPartition, partition_count: int) -> PartitionNotFoundError:
    """Return the error for a partition that does not exist in its topic."""
    detail = f"topic {place.topic} has partitions 0 to {partition_count - 1}, not {place.partition}"
    data: dict[str, JSON] = {"topic": place.topic, "partition": place.partition}
    return PartitionNotFoundError(ProblemError("partition_not_found", detail, data=data), subject=str(place))


SETTING = "auto.create.topics.enable"


async def creates_topics(transport: Transport, metadata: MetadataCache) -> bool:
    """Return whether the cluster creates topics automatically; raise `UnreachableError` if no broker answers."""
    return await transport.retry(_setting, transport, metadata)


async def create_topic(transport: Transport, topic: str) -> None:
    """Create a topic with the cluster's defaults, unless the topic exists."""
    await transport.call(json_call("POST", "/v1/topics", f"create topic {topic}", body={"name": topic}))


async def _setting(transport: Transport, metadata: MetadataCache) -> bool:
    """Return the setting of the first broker that answers, since each broker reports only its own startup settings."""
    failures: dict[str, str] = {}
    for broker, address in sorted(metadata.picture.addresses.items()):
        asked = json_call("GET", f"/v1/brokers/{broker}/config", f"describe broker {broker}")
        try:
            answer = await transport.send(asked, address)
        except UnreachableError as error:
            failures.update(error.attempts)
            continue
        config = decoded(answer, ConfigDescription, asked.subject).config
        return str(config[SETTING].value).lower() == "true"
    # Brokers that have just started, or have lost their leases, are missing from the metadata.
    await metadata.refresh()
    raise UnreachableError("ask a broker whether it creates topics", failures, sent=False)
