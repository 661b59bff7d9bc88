"""Routes of the calls about idempotent producers, and the bodies of the call that allocates an id and epoch.

The module is a part of the route table, which `routes` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import Kind, Operation, each_in_body, needs, on, self_with
from fairlead_api.bodies.json_bodies import Request
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.metadata import Answer, Page
from fairlead_api.bodies.producers import PartitionProducer
from fairlead_api.identifiers import check_group_name
from fairlead_api.routes.definitions import AnswerForm, Route, Traffic
from fairlead_api.routes.records import FORWARD_HEADER, PARTITION_PARAMETERS
from fairlead_api.routes.topics import AFTER, LIMIT


class AllocateProducerRequest(Request, frozen=True, kw_only=True):
    """Body of `POST /v1/producers`; without a name, a new producer is created."""

    name: str | None = None

    def __post_init__(self) -> None:
        """Raise `invalid_group_name` for a name that is not allowed."""
        if self.name is not None:
            check_group_name(self.name)


class ProducerAnswer(Answer, frozen=True, kw_only=True):
    """Answer to `POST /v1/producers`: id and epoch for the producer's batches; sequences start at 0 per partition."""

    producer_id: int
    producer_epoch: int
    name: str | None


PRODUCER_ROUTES: Final = (
    Route(
        name="allocate_producer",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/producers",
        summary="Get a producer id, or the next epoch of a named producer, which fences its earlier epochs",
        access=self_with(each_in_body(Operation.WRITE, Kind.PRODUCER)),
        request=AllocateProducerRequest,
        body_types=(JSON,),
        answers=(
            AnswerForm(
                status=200,
                type=ProducerAnswer,
                media_types=(JSON,),
                explanation="id and epoch for the batches of one producer",
            ),
        ),
        problems=(
            "invalid_group_name",
            "body_too_large",
            "unsupported_media_type",
            "conflict",
            "coordination_unavailable",
            "shutting_down",
        ),
    ),
    Route(
        name="partition_producers",
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/producers",
        summary="The idempotent producers that a partition remembers",
        access=needs(on(Operation.READ, Kind.TOPIC)),
        path_parameters=PARTITION_PARAMETERS,
        query=(LIMIT, AFTER),
        headers=(FORWARD_HEADER,),
        answers=(
            AnswerForm(
                status=200,
                type=Page[PartitionProducer],
                media_types=(JSON,),
                explanation="one page of producers, by id",
            ),
        ),
        problems=(
            "topic_not_found",
            "topic_recreated",
            "invalid_topic_name",
            "partition_not_found",
            "not_leader",
            "no_leader",
            "shutting_down",
        ),
    ),
)
