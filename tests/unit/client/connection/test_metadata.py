"""The cached metadata of the cluster: when it is requested, and which parts are kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fairlead.connection import pool
from fairlead.connection.metadata import MetadataCache, topic_not_found
from fairlead.connection.transport import Call, Transport
from fairlead.errors import InvalidTopicNameError, TopicNotFoundError
from fairlead.settings import ConnectionSettings
from refusals import raises

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

METADATA = "/v1/metadata"
CALL = Call(method="GET", path="/v1/versions", subject="versions")


@pytest.fixture
async def metadata(broker: ScriptedBroker) -> AsyncIterator[MetadataCache]:
    """Yield a metadata cache for the scripted broker, which has the topics flights, ships and trains."""
    broker.topics = ["flights", "ships", "trains"]
    async with Transport(ConnectionSettings(bootstrap=(broker.url,))) as transport:
        yield MetadataCache(transport)


async def test_a_topic_is_asked_for_once(broker: ScriptedBroker, metadata: MetadataCache) -> None:
    """The metadata of a topic is requested once and cached."""
    topic = await metadata.topic("flights")
    assert await metadata.topic("flights") is topic

    assert [request.query for request in broker.received(METADATA)] == [{"topics": "flights"}]
    assert metadata.picture.leader("flights", 1) == broker.url
    assert metadata.picture.leader("flights", 2) is None
    assert metadata.picture.leader("planes", 0) is None


async def test_a_new_topic_joins_those_already_wanted(
    broker: ScriptedBroker, metadata: MetadataCache
) -> None:
    """The cache requests a new topic together with all topics that are already cached."""
    await metadata.topic("flights")
    await metadata.topic("ships")

    assert broker.received(METADATA)[-1].query == {"topics": "flights,ships"}
    assert metadata.picture.topics.keys() == {"flights", "ships"}


async def test_a_moved_topic_is_looked_up_in_the_other_cluster(broker: ScriptedBroker) -> None:
    """A topic is followed once another cluster accepts its records, and has no leader while that cluster is silent."""
    broker.topics = ["flights", "ships"]
    settings = ConnectionSettings(bootstrap=(broker.url,), follow_moves=True)
    async with type(broker)() as other, Transport(settings) as transport:
        metadata = MetadataCache(transport)
        await metadata.topics(["flights", "ships"])
        allowed = metadata.follow("flights", ["http://127.0.0.1:1"])
        await metadata.refresh()
        unanswered = metadata.picture
        metadata.follow("flights", ["http://127.0.0.1:1", other.url + "/"])
        await metadata.refresh()
        answered, home = metadata.picture, metadata.home
        other.refuse(METADATA, "overloaded", "overloaded", "overloaded")
        await metadata.refresh()
        silent = metadata.picture
        other.scripts.clear()
        late = metadata.go_back("flights", broker.url)
        await metadata.refresh()
        still = metadata.picture
        returned = metadata.go_back("flights", other.url)
        again = metadata.go_back("flights", other.url)
        await metadata.refresh()

    assert allowed
    # Answers to requests in flight from a cluster that the client has left: the records wait for the next leader.
    assert (late, returned, again) == (True, True, True)
    assert still.leader("flights", 0) == other.url
    assert not metadata.go_back("ships", broker.url)
    assert unanswered.leader("flights", 0) == broker.url
    assert answered.leader("flights", 0) == other.url
    assert answered.leader("ships", 0) == broker.url
    assert home is None
    assert silent.leader("flights", 0) is None
    assert "flights" in silent.topics or "flights" not in silent.asked
    assert metadata.picture.leader("flights", 0) == broker.url


async def test_a_former_source_that_is_already_a_mirror_does_not_end_a_move(broker: ScriptedBroker) -> None:
    """A client waits for the other cluster even if its own cluster no longer names that cluster."""
    settings = ConnectionSettings(bootstrap=(broker.url,), follow_moves=True)
    async with type(broker)() as other, Transport(settings) as transport:
        metadata = MetadataCache(transport)
        await metadata.topic("flights")
        other.mirrors = {"flights"}
        broker.mirrors = {"flights"}
        metadata.follow("flights", [other.url])
        await metadata.refresh()
        early, waits = metadata.picture, metadata.go_back("flights", broker.url)
        other.mirrors.clear()
        await metadata.refresh()
        promoted = metadata.picture
        # A hand-over that was taken back is not waited for.
        other.mirrors = {"flights"}
        metadata.go_back("flights", other.url)
        broker.mirrors.clear()
        metadata.follow("flights", [other.url])
        await metadata.refresh()
        moving = metadata.is_moving

    assert early.leader("flights", 0) == broker.url
    assert waits
    assert promoted.leader("flights", 0) == other.url
    assert not moving


async def test_a_client_that_reaches_one_address_follows_no_topic(broker: ScriptedBroker) -> None:
    """A client with `one_address`, with TLS for an address without TLS, or without `follow_moves` follows no topic."""
    one_address = ConnectionSettings(bootstrap=(broker.url,), one_address=True, follow_moves=True)
    secure = ConnectionSettings(bootstrap=("https://127.0.0.1:1",), follow_moves=True)
    still = ConnectionSettings(bootstrap=(broker.url,))
    allowed = []
    for settings in (one_address, secure, still):
        async with Transport(settings) as transport:
            allowed.append(MetadataCache(transport).follow("flights", [broker.url]))

    assert allowed == [False, False, False]


async def test_many_callers_share_one_request(broker: ScriptedBroker, metadata: MetadataCache) -> None:
    """Concurrent callers that need a refresh share one request."""
    await asyncio.gather(*(metadata.topic("flights") for _ in range(20)))
    assert len(broker.received(METADATA)) == 1
    await asyncio.gather(*(metadata.refresh() for _ in range(20)))

    assert len(broker.received(METADATA)) == 2


async def test_an_unchanged_picture_is_not_sent_again(
    broker: ScriptedBroker, metadata: MetadataCache
) -> None:
    """A refresh sends the ETag, and an answer with status 304 keeps the cached topics and resets their age."""
    await metadata.topic("flights")
    before = metadata.picture
    await metadata.refresh()

    assert broker.received(METADATA)[-1].headers["if-none-match"] == before.etag
    assert metadata.picture.topics is before.topics
    assert metadata.picture.taken_at > before.taken_at


async def test_a_changed_picture_is_taken(broker: ScriptedBroker, metadata: MetadataCache) -> None:
    """A refresh replaces changed metadata: a partition that lost its leader has no leader afterwards."""
    await metadata.topic("flights")
    broker.leaders = [1, None]
    await metadata.refresh()

    assert metadata.picture.leader("flights", 1) is None


async def test_a_missing_topic_is_reported_and_not_requested_again(
    broker: ScriptedBroker, metadata: MetadataCache
) -> None:
    """A missing topic is reported, is not requested again, and does not affect the other topics."""
    await metadata.topic("flights")
    with raises(TopicNotFoundError, "planes"):
        await metadata.topics(["flights", "planes"])
    await metadata.refresh()

    assert broker.received(METADATA)[-1].query == {"topics": "flights"}


async def test_a_broker_that_refuses_the_whole_call_for_one_name_is_asked_without_it(
    broker: ScriptedBroker, metadata: MetadataCache
) -> None:
    """If a broker refuses the request because of one missing topic, the request is retried without that topic."""
    broker.refuse(METADATA, "topic_not_found", topic="planes")
    with raises(TopicNotFoundError, "planes"):
        await metadata.topics(["flights", "planes"])

    assert metadata.picture.topics.keys() == {"flights"}


async def test_a_deleted_topic_leaves_the_picture(broker: ScriptedBroker, metadata: MetadataCache) -> None:
    """A deleted topic is removed from the cached metadata but stays in `asked`."""
    await metadata.topics(["flights", "ships"])
    broker.topics.remove("ships")
    await metadata.refresh()

    assert metadata.picture.topics.keys() == {"flights"}
    assert "ships" in metadata.picture.asked


async def test_names_that_cannot_be_are_refused_without_a_call(
    broker: ScriptedBroker, metadata: MetadataCache
) -> None:
    """A topic name with a comma is refused without a request, because the request would contain two names."""
    with pytest.raises(InvalidTopicNameError):
        await metadata.topic("flights,ships")

    assert broker.requests == []


async def test_the_picture_grows_old(broker: ScriptedBroker) -> None:
    """Cached metadata is old after its maximum age, but only if it contains topics."""
    settings = ConnectionSettings(bootstrap=(broker.url,), metadata_age_seconds_max=0.0)
    async with Transport(settings) as transport:
        metadata = MetadataCache(transport)
        assert not metadata.is_old
        await metadata.topic("flights")

        assert metadata.is_old


async def test_more_names_than_a_url_holds(broker: ScriptedBroker, metadata: MetadataCache) -> None:
    """If the names do not fit into a URL, all topics are requested, but only the wanted topics are kept."""
    broker.topics = [f"flights-of-the-year-{number}" for number in range(2_000)]
    wanted = broker.topics[:1_500]
    found = await metadata.topics(wanted)
    with raises(TopicNotFoundError, "nothing"):
        await metadata.topic("nothing")
    await metadata.refresh()

    assert found.keys() == set(wanted)
    assert metadata.picture.topics.keys() == set(wanted)
    assert all("topics" not in request.query for request in broker.received(METADATA))


@pytest.fixture
async def asked_first(broker: ScriptedBroker) -> AsyncIterator[ScriptedBroker]:
    """Yield the first broker that clients call, whose metadata names broker 2 as the leader of every partition."""
    async with type(broker)() as other:
        other.addresses = broker.addresses = {1: broker.url, 2: other.url}
        other.leaders = [2, 2]
        yield other


@pytest.fixture
async def both(broker: ScriptedBroker, asked_first: ScriptedBroker) -> AsyncIterator[MetadataCache]:
    """Yield a metadata cache for both brokers."""
    async with Transport(ConnectionSettings(bootstrap=(asked_first.url, broker.url))) as transport:
        yield MetadataCache(transport)


async def test_a_broker_that_is_cut_off_does_not_hide_what_others_know(
    broker: ScriptedBroker, asked_first: ScriptedBroker, both: MetadataCache
) -> None:
    """If an isolated broker keeps returning wrong metadata, the client asks another broker and then prefers it."""
    broker.leader_epoch = 2
    await both.topic("flights")
    assert both.picture.leader("flights", 0) == asked_first.url
    await both.refresh()
    assert both.picture.leader("flights", 0) == broker.url
    await both.topic("flights")
    asked = len(asked_first.received(METADATA))
    await both.refresh()

    # The preferred broker's metadata is unchanged, so the client also requests the first broker's, which is not newer.
    assert len(asked_first.received(METADATA)) == asked + 1
    assert both.picture.leader("flights", 0) == broker.url
    broker.leader_epoch = 3
    await both.refresh()
    assert len(asked_first.received(METADATA)) == asked + 1
    assert both.picture.topics["flights"].partitions[0].leader_epoch == 3


async def test_an_old_picture_is_compared_too(broker: ScriptedBroker, asked_first: ScriptedBroker) -> None:
    """Old metadata is also compared with another broker's, because an isolated broker never has newer metadata."""
    broker.leader_epoch = 2
    addresses = (asked_first.url, broker.url)
    async with Transport(ConnectionSettings(bootstrap=addresses, metadata_age_seconds_max=0)) as transport:
        cache = MetadataCache(transport)
        await cache.topic("flights")
        assert cache.is_old
        await cache.refresh()

        assert cache.picture.leader("flights", 0) == broker.url


async def test_another_opinion_is_left_alone_where_it_is_none(
    broker: ScriptedBroker, asked_first: ScriptedBroker, both: MetadataCache
) -> None:
    """Another broker's answer is ignored if it is a refusal, is older, or has a different topic of the same name."""
    await both.topic("flights")
    broker.refuse(METADATA, "topic_not_found")
    await both.refresh()
    broker.leader_epoch = 0
    await both.refresh()
    broker.leader_epoch, broker.topic_id = 9, "9e107d9d-372b-4a6c-8f0a-0c1b2d3e4f50"
    await both.refresh()

    assert len(broker.received(METADATA)) == 3
    assert both.picture.leader("flights", 0) == asked_first.url


async def test_a_silent_broker_is_not_waited_for(
    broker: ScriptedBroker, asked_first: ScriptedBroker, both: MetadataCache
) -> None:
    """A second broker that does not answer delays a refresh by at most a second, and the next refresh skips it."""
    never = asyncio.Event()

    async def silent(_: Received) -> Reply:
        """Never answer."""
        await never.wait()
        raise AssertionError("it is over")

    await both.topic("flights")
    broker.script(METADATA, silent)
    async with asyncio.timeout(5):
        await both.refresh()
        await both.refresh()

    assert len(broker.received(METADATA)) == 1
    assert both.picture.leader("flights", 0) == asked_first.url
    never.set()


@pytest.fixture
async def balancer(broker: ScriptedBroker, asked_first: ScriptedBroker) -> AsyncIterator[str]:
    """Yield the address of a load balancer that gives each new connection to the next of two brokers."""
    ports = itertools.cycle(int(url.rpartition(":")[2]) for url in (asked_first.url, broker.url))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Copy bytes until one side closes."""
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                target.write(data)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect a client to the next broker."""
        upstream, downstream = await asyncio.open_connection("127.0.0.1", next(ports))
        await asyncio.gather(copy(reader, downstream), copy(upstream, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_one_address_finds_the_brokers_behind_a_balancer(
    broker: ScriptedBroker, asked_first: ScriptedBroker, balancer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a single address, later calls open a new connection if the metadata is unchanged, and may be forwarded."""
    monkeypatch.setattr(pool, "RECONNECT_SECONDS", 0.0)
    broker.leader_epoch = 2
    broker.addresses = {1: None, 2: None}

    async def good(_: Received) -> Reply:
        """Answer without a body."""
        return 200, {}, b""

    broker.script("/v1/versions", good)
    async with Transport(ConnectionSettings(bootstrap=(balancer,), one_address=True)) as transport:
        cache = MetadataCache(transport)
        await cache.topic("flights")
        assert len(asked_first.received(METADATA)) == 1
        await cache.refresh()
        await cache.refresh()
        leader = cache.picture.leader("flights", 0)
        assert leader is not None
        answer = await transport.send(CALL, leader)

    assert cache.picture.topics["flights"].partitions[0].leader_epoch == 2
    assert answer.broker == balancer
    assert "fairlead-forward" not in broker.received("/v1/versions")[0].headers


def test_a_missing_topic_is_named_once() -> None:
    """The error for a missing topic names the request, the topic and the next step."""
    error = topic_not_found("planes")

    assert error.code == "topic_not_found"
    assert [str(error).count(each) for each in ("metadata", "planes", "topic_not_found")] == [1, 1, 1]
