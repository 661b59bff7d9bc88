"""A source that describes impossible topics and offsets harms neither the brokers of the link nor its other topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from cluster_kit import Cluster
from fairlead import Admin, TopicPartition
from fairlead_api.bodies.group_answers import OffsetsAnswer
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns
from fairlead_api.bodies.metadata import TopicEra, TopicMirror
from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_broker.controlling.linking import link_keeper
from fairlead_broker.sources import source_cluster
from fairlead_broker.sources.source_cluster import SourceCluster, SourceTopics
from link_kit import link, mirrored, topic_of, until, url
from refusals import refuses

if TYPE_CHECKING:
    import pytest

NEW_ID = "0b6f1c7e-3d7c-4b57-9c3b-0a8f4e1d2c%02d"


async def test_impossible_answers_are_refused_and_sound_topics_are_mirrored(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids that are paths, wrong numbers and wrong settings create no topic, and wrong offsets are not committed."""
    monkeypatch.setattr(link_keeper, "SURVEY_SECONDS", 0.05)
    topic_id = await source.topic("flights", replication_factor=1)
    await (await source.led("flights", topic_id)).produce(b"1", b"2")
    topics, get = SourceCluster.topics, SourceCluster.get
    mirror = TopicMirror(
        link="l", source_cluster_id="c", source_topic="t", state="mirroring", lineage=["x" * 65]
    )
    setting = {"min.insync.replicas": ConfigEntry("many", ConfigSource.TOPIC)}

    async def hostile_topics(self: SourceCluster, seen: str | None = None) -> SourceTopics:
        found = await topics(self, None)
        assert found is not None, "a list without a tag is always sent"
        [sound] = found.items
        changes: list[dict[str, Any]] = [
            {"topic_id": "../../../harm"},
            {"name": "../harm"},
            {"partitions": 1 << 40},
            {"partitions": 0},
            {"replication_factor": -1},
            {"eras": [TopicEra(epoch=1 << 40, cluster_id="c")]},
            {"mirror": mirror},
            {"config": setting},
        ]
        harm = [
            replace(sound, **{"name": f"harm-{at}", "topic_id": NEW_ID % at, **each})
            for at, each in enumerate(changes)
        ]
        return SourceTopics([*harm, sound], None)

    async def hostile_offsets(self: SourceCluster, path: str, type_: Any, query: Any = None) -> Any:
        answer = await get(self, path, type_, query)
        if isinstance(answer, OffsetsAnswer):
            wrong = [replace(each, offset=-5) for each in answer.offsets if "wrong" in path]
            return replace(answer, offsets=wrong or answer.offsets)
        return answer

    monkeypatch.setattr(SourceCluster, "topics", hostile_topics)
    monkeypatch.setattr(SourceCluster, "get", hostile_offsets)
    async with Admin(url(source)) as admin:
        for group in ("wrong", "right"):
            await admin.commit_group_offsets(group, {TopicPartition("flights", 0): 1})
    await link(source, target, groups=NamePatterns(include=["*"]))
    await mirrored(target, topic_id, 2)
    async with Admin(url(target)) as admin:

        async def is_copied() -> bool:
            return [each.group for each in await admin.list_groups()] == ["right"]

        await until(is_copied, "the offsets of the sound group are not copied")
        names = [each.name for each in await admin.list_topics()]
    refused = await topic_of(target, "harm-7")

    assert names == ["flights"]
    assert refused is not None
    assert refused.state == "blocked"
    assert not list(target.path.parent.glob("**/harm*"))


async def test_an_answer_that_is_too_large_is_not_received(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer above the limit ends the call before it fills the memory of the broker."""
    monkeypatch.setattr(source_cluster, "ANSWER_BYTES_MAX", 20)
    topics = NamePatterns(include=["*"])
    request = CreateLinkRequest(name="east", source=LinkSource(bootstrap=[url(source)]), topics=topics)
    with refuses("link_source_unreachable", 20):
        await target.controller.links.create(request)
    monkeypatch.setattr(source_cluster, "ANSWER_BYTES_MAX", 1 << 20)
    topic_id = await source.topic("flights", replication_factor=1)
    await link(source, target)
    await mirrored(target, topic_id, 0)
