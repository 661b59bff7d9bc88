"""Calls about links, and about topics that are handed over to another cluster.

Callers: ``application`` for the routes named in ``endpoints``. The runtime changes links; this module handles bodies,
parameters and pages. All calls are answered by the controller, which knows the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.bodies.links import (
    AdoptRequest,
    AlterLinkRequest,
    CreateLinkRequest,
    HandOverRequest,
    PromoteRequest,
    TakeBackRequest,
)
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.requests import decode_request
from fairlead_broker.registry.link_records import LinkState
from fairlead_broker.runtime import Broker
from fairlead_broker.server.admin.topics import described
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.paging import page
from fairlead_broker.server.routing.forwarding import Forwarding


class LinkCalls:
    """Endpoints of the calls about links."""

    def __init__(self, broker: Broker, forwarding: Forwarding) -> None:
        self._broker = broker
        self._forwarding = forwarding

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        at_controller = self._forwarding.at_controller
        return {
            "create_link": self.create_link,
            "list_links": at_controller(self.list_links),
            "describe_link": at_controller(self.describe_link),
            "alter_link": self.alter_link,
            "delete_link": self.delete_link,
            "pause_link": self.pause_link,
            "resume_link": self.resume_link,
            "acknowledge_link": self.acknowledge_link,
            "link_topics": at_controller(self.link_topics),
            "link_tails": at_controller(self.link_tails),
            "promote_link": self.promote_link,
            "take_back_link": self.take_back_link,
            "adopt_link": self.adopt_link,
            "hand_over_topic": self.hand_over_topic,
            "take_back_topic": self.take_back_topic,
        }

    async def create_link(self, call: Call) -> None:
        """``POST /v1/links``: 201 when the link is created, 200 when it exists with the same specification."""
        dry_run = call.query.flag("dry_run")
        request = decode_request(CreateLinkRequest, await json_body(call))
        if request.acls:
            # The source decides which callers the copied ACLs allow.
            call.access.require(Operation.CREATE, Kind.SECURITY, SINGLE_NAME)
        self._broker.admit()
        link, created = await self._broker.links.create(request, dry_run=dry_run)
        if created and not dry_run:
            call.change = {"link": link.name, "source": link.source_cluster_id}
            location = (b"location", f"/v1/links/{link.name}".encode())
            await call.answer_json(link, HTTPStatus.CREATED, [location])
        else:
            await call.answer_json(link)

    async def list_links(self, call: Call) -> None:
        """``GET /v1/links``, sorted by name."""
        chosen, following = page(
            self._broker.links.all(),
            lambda link: link.name,
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def describe_link(self, call: Call) -> None:
        """``GET /v1/links/{link}``."""
        await call.answer_json(self._broker.links.describe(_link(call)))

    async def alter_link(self, call: Call) -> None:
        """``PATCH /v1/links/{link}``."""
        request = decode_request(AlterLinkRequest, await json_body(call))
        if request.acls is True or self._broker.links.describe(_link(call)).acls:
            call.access.require(Operation.CREATE, Kind.SECURITY, SINGLE_NAME)
        self._broker.admit()
        await call.answer_json(await self._broker.links.alter(_link(call), request))

    async def delete_link(self, call: Call) -> None:
        """``DELETE /v1/links/{link}``."""
        self._broker.admit()
        await self._broker.links.delete(_link(call))
        await call.answer(HTTPStatus.NO_CONTENT, [])

    async def pause_link(self, call: Call) -> None:
        """``POST /v1/links/{link}:pause``."""
        self._broker.admit()
        await call.answer_json(await self._broker.links.set_state(_link(call), LinkState.PAUSED))

    async def resume_link(self, call: Call) -> None:
        """``POST /v1/links/{link}:resume``."""
        self._broker.admit()
        await call.answer_json(await self._broker.links.set_state(_link(call), LinkState.RUNNING))

    async def acknowledge_link(self, call: Call) -> None:
        """``POST /v1/links/{link}:acknowledge``."""
        self._broker.admit()
        await call.answer_json(await self._broker.links.acknowledge(_link(call)))

    async def link_topics(self, call: Call) -> None:
        """``GET /v1/links/{link}/topics``, sorted by name."""
        chosen, following = page(
            await self._broker.links.topics(_link(call)),
            lambda topic: topic.topic,
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def link_tails(self, call: Call) -> None:
        """``GET /v1/links/{link}/tails``, sorted by topic, partition, offset and broker."""
        chosen, following = page(
            await self._broker.links.tails(_link(call)),
            lambda tail: f"{tail.topic} {tail.partition:010d} {tail.first_offset:020d} {tail.broker:010d}",
            limit=call.query.integer("limit"),
            after=call.query.text_or_none("after"),
        )
        await call.answer_json(Page(items=chosen, next=following))

    async def promote_link(self, call: Call) -> None:
        """``POST /v1/links/{link}:promote``: 202 when the promotions have begun."""
        request = decode_request(PromoteRequest, await json_body(call))
        self._broker.admit()
        topics = await self._broker.links.promote(_link(call), request)
        call.change = {"topics": [each.topic for each in topics], "mode": request.mode}
        await call.answer_json(topics, HTTPStatus.ACCEPTED)

    async def take_back_link(self, call: Call) -> None:
        """``POST /v1/links/{link}:take-back``."""
        request = decode_request(TakeBackRequest, await json_body(call))
        self._broker.admit()
        topics = await self._broker.links.take_back(_link(call), request)
        call.change = {"topics": [each.topic for each in topics]}
        await call.answer_json(topics)

    async def adopt_link(self, call: Call) -> None:
        """``POST /v1/links/{link}:adopt``."""
        request = decode_request(AdoptRequest, await json_body(call))
        self._broker.admit()
        topics = await self._broker.links.adopt(_link(call), request)
        call.change = {"topics": [each.topic for each in topics]}
        await call.answer_json(topics)

    async def hand_over_topic(self, call: Call) -> None:
        """``POST /v1/topics/{topic}:hand-over``."""
        request = decode_request(HandOverRequest, await json_body(call))
        self._broker.admit()
        answer = await self._broker.links.hand_over(call.topic, request)
        call.change = {"cluster_id": request.cluster_id}
        await call.answer_json(answer)

    async def take_back_topic(self, call: Call) -> None:
        """``POST /v1/topics/{topic}:take-back``."""
        self._broker.admit()
        await self._broker.links.take_topic_back(call.topic)
        await call.answer_json(described(self._broker.views.by_name(call.topic)))


def _link(call: Call) -> str:
    return call.parameters["link"]
