"""Topics: create, list, describe, alter, delete.

Callers: ``application`` for the routes named in ``endpoints``. The runtime decides whether a change to a topic is
allowed; this module handles bodies, parameters and pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from http import HTTPStatus

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.metadata import Page, TopicDescription, TopicEra, TopicMirror
from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest, decode_request
from fairlead_api.configuration import TOPIC_KEYS, ConfigEntry, unknown_key
from fairlead_api.excerpts import excerpt
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import Broker, TopicView
from fairlead_broker.runtime.configs import differences
from fairlead_broker.server.admin.cluster import topic_hand_over
from fairlead_broker.server.admin.entity_tags import entity_tag, is_answered, names_of_caller, tag_headers
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import page
from fairlead_broker.server.routing.locate import topic_of


class TopicCalls:
    """Endpoints of the calls about topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "create_topic": self.create_topic,
            "list_topics": self.list_topics,
            "describe_topic": self.describe_topic,
            "alter_topic": self.alter_topic,
            "delete_topic": self.delete_topic,
        }

    async def create_topic(self, call: Call) -> None:
        """``POST /v1/topics``: 201 when the topic is created, 200 when it exists with the same specification."""
        dry_run = call.query.flag("dry_run")
        request = decode_request(CreateTopicRequest, await json_body(call))
        call.access.require(Operation.CREATE, Kind.TOPIC, request.name)
        view, created = await self._broker.create_topic(request, dry_run=dry_run)
        if created and not dry_run:
            call.change = {"topic": view.name, "partitions": view.partition_count}
            location = (b"location", f"/v1/topics/{view.name}".encode())
            await call.answer_json(described(view), HTTPStatus.CREATED, [location])
        else:
            await call.answer_json(described(view))

    async def list_topics(self, call: Call) -> None:
        """``GET /v1/topics``, sorted by name: 304 when the caller's copy (If-None-Match) is current."""
        limit, after = call.query.integer("limit"), call.query.text_or_none("after")
        config = call.query.text_or_none("config")
        settings = _chosen_settings(config)
        # The broker's own settings are the defaults of a topic's configuration.
        broker = str(self._broker.entry.incarnation.broker)
        tag = entity_tag(self._broker, broker, str(limit), after or "", config or "", names_of_caller(call))
        if await is_answered(call, tag):
            return
        chosen, following = page(
            [view for view in self._broker.views.all() if call.access.sees(Kind.TOPIC, view.name)],
            lambda view: view.name,
            limit=limit,
            after=after,
        )
        items = [described(view, settings) for view in chosen]
        await call.answer_json(Page(items=items, next=following), headers=tag_headers(call, tag))

    async def describe_topic(self, call: Call) -> None:
        """``GET /v1/topics/{topic}``."""
        await call.answer_json(described(topic_of(call, self._broker)))

    async def alter_topic(self, call: Call) -> None:
        """``PATCH /v1/topics/{topic}``."""
        request = decode_request(AlterTopicRequest, await json_body(call))
        before = self._config(call.topic)
        view = await self._broker.alter_topic(call.topic, request, call.topic_id)
        call.change = {
            "partitions": view.partition_count,
            "config": differences(before, dict(view.config_entries)),
        }
        await call.answer_json(described(view))

    def _config(self, topic: str) -> Mapping[str, ConfigEntry]:
        """Return the configuration of a topic; empty if the topic does not exist."""
        try:
            return dict(self._broker.views.by_name(topic).config_entries)
        except ProblemError:
            return {}

    async def delete_topic(self, call: Call) -> None:
        """``DELETE /v1/topics/{topic}``."""
        await self._broker.delete_topic(call.topic, call.topic_id)
        await call.answer(HTTPStatus.NO_CONTENT, [])


def described(view: TopicView, settings: Collection[str] = TOPIC_KEYS) -> TopicDescription:
    """Return the description of a topic in the API's format, with the given settings."""
    return TopicDescription(
        name=view.name,
        topic_id=view.topic_id,
        state=view.state.value,
        partitions=view.partition_count,
        replication_factor=view.replication_factor,
        config={name: entry for name, entry in view.config_entries.items() if name in settings},
        mirror=_mirror_of(view),
        eras=[TopicEra(epoch=each.epoch, cluster_id=each.cluster_id) for each in view.eras],
        handed_over=topic_hand_over(view),
    )


def _chosen_settings(text: str | None) -> Collection[str]:
    """Return the settings that a query names, by default all. Raises `invalid_config` for an unknown setting."""
    if text is None:
        return TOPIC_KEYS
    names = text.split(",")
    for name in names:
        if name not in TOPIC_KEYS:
            raise ProblemError("invalid_config", unknown_key(name, TOPIC_KEYS), data={"key": excerpt(name)})
    return frozenset(names)


def _mirror_of(view: TopicView) -> TopicMirror | None:
    mirror = view.mirror
    if mirror is None:
        return None
    return TopicMirror(
        link=mirror.link,
        source_cluster_id=mirror.source_cluster_id,
        source_topic=mirror.source_name,
        state=mirror.state.value,
        lineage=list(mirror.lineage),
    )
