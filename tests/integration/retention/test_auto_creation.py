"""Creation of missing topics by produce requests, if and only if the cluster allows it."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import Consumer, Producer
from fairlead.errors import TopicNotFoundError

ON = {"auto.create.topics.enable": True}


@pytest.fixture
async def api(lives):
    """Return a broker that creates topics with three partitions."""
    api = await lives.start(ON)
    await api.admin.alter_cluster_config({"num.partitions": 3})
    return api


async def topics(api) -> list[str]:
    """Return the names of all topics."""
    return [topic.name for topic in await api.admin.list_topics()]


@pytest.mark.parametrize("path", ["/v1/topics/flights/records", "/v1/topics/flights/partitions/2/records"])
async def test_the_first_produce_creates_the_topic_with_the_defaults(api, path: str) -> None:
    """A missing topic is created with the cluster's defaults by both produce calls, which store the record."""
    answer = await api.call("POST", path, {"records": [{"value": "a"}]})
    topic = await api.admin.describe_topic("flights")

    assert answer.status == 200
    assert (topic.partitions, topic.replication_factor) == (3, 1)


async def test_the_sdk_creates_by_sending(api) -> None:
    """A missing topic is created by the SDK's first send, which waits for it."""
    async with Producer(api.url) as producer:
        metadata = await producer.send_and_wait("flights", b"a")
    topic = await api.admin.describe_topic("flights")

    assert metadata.topic == "flights"
    assert topic.partitions == 3


async def test_concurrent_creators_converge(api) -> None:
    """A topic is created once by twenty concurrent first records, which are all stored."""
    calls = [
        api.call("POST", "/v1/topics/flights/records", {"records": [{"value": str(number)}]})
        for number in range(20)
    ]
    answers = await asyncio.gather(*calls)
    ends = [(await api.admin.offsets("flights", partition)).high_watermark for partition in range(3)]

    assert {answer.status for answer in answers} == {200}
    assert len({answer.json["topic_id"] for answer in answers}) == 1
    assert sum(ends) == 20


async def test_creators_converge_while_the_default_changes(api) -> None:
    """A topic is created once by concurrent requests without a number of partitions while the default changes."""
    creators = [api.admin.create_topic("flights") for _ in range(5)]
    changes = [api.admin.alter_cluster_config({"num.partitions": number}) for number in (4, 5)]
    created = await asyncio.gather(*creators, *changes)

    assert len({topic.topic_id for topic in created[:5]}) == 1


async def test_readers_never_create(api) -> None:
    """Fetch, offsets, describe and a waiting consumer create no topic; each is refused as not found."""
    fetched = await api.fetch("flights", 0)
    offsets = await api.call("GET", "/v1/topics/flights/partitions/0/offsets")
    described = await api.call("GET", "/v1/topics/flights")
    metadata = await api.call("GET", "/v1/metadata?topics=flights")
    deleted = await api.call("POST", "/v1/topics/flights/partitions/0:delete-records", {"offset": -1})
    async with Consumer(api.url, retry_timeout="0.2s") as consumer:
        with pytest.raises(TopicNotFoundError):
            await consumer.assign(topic="flights")

    assert {answer.json["code"] for answer in (fetched, offsets, described, metadata, deleted)} == {
        "topic_not_found"
    }
    assert await topics(api) == []


async def test_a_wrong_name_or_a_topic_id_creates_nothing(api) -> None:
    """A produce request with an invalid topic name is refused and creates no topic."""
    named = await api.call("POST", "/v1/topics/fl%20ights/records", {"records": [{"value": "a"}]})

    assert named.json["code"] == "invalid_topic_name"
    assert await topics(api) == []


async def test_off_is_the_default_and_creates_nothing(lives) -> None:
    """A missing topic is refused by default, over HTTP and by the SDK."""
    api = await lives.start({})
    answer = await api.call("POST", "/v1/topics/flights/records", {"records": [{"value": "a"}]})
    async with Producer(api.url, delivery_timeout="0.5s") as producer:
        with pytest.raises(TopicNotFoundError):
            await producer.send_and_wait("flights", b"a")

    assert (answer.status, answer.json["code"]) == (404, "topic_not_found")
    assert await topics(api) == []


async def test_the_setting_changes_while_the_broker_runs(lives) -> None:
    """A change of the broker's or cluster's setting applies at the next produce request to a missing topic."""
    api = await lives.start({})
    codes = []
    for change in (
        api.admin.alter_cluster_config({}),
        api.admin.alter_cluster_config(ON),
        api.admin.alter_broker_config(0, {"auto.create.topics.enable": False}),
    ):
        await change
        answer = await api.produce(f"flights-{len(codes)}", "a")
        codes.append(answer.json.get("code", "stored"))

    assert codes == ["topic_not_found", "stored", "topic_not_found"]
    assert await topics(api) == ["flights-1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("records", {"records": []}),
        ("records", {"garbage": 1}),
        ("records", "garbage"),
        ("records", {"records": [{"value": "a", "timestamp": "9000-01-01T00:00:00Z"}]}),
        ("records?encoding=base64", {"records": [{"value": "not base64"}]}),
        ("partitions/0/records", {"records": []}),
        ("partitions/0/records", {"records": [{"value": "a", "timestamp": "9000-01-01T00:00:00Z"}]}),
        ("partitions/7/records", {"records": [{"value": "a"}]}),
    ],
)
async def test_a_refused_produce_creates_nothing(api, path: str, body: object) -> None:
    """A topic is not created by a refused produce request."""
    answer = await api.call("POST", f"/v1/topics/ghost/{path}", body)

    assert 400 <= answer.status < 500
    assert answer.json["code"] != "topic_not_found"
    assert await topics(api) == []
