"""Topics: CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.bodies.requests import PARTITIONS_MAX, AlterTopicRequest, CreateTopicRequest
from fairlead_api.identifiers import TopicId, check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.calls.admin.changes import Change, Changed, Changes
from fairlead_broker.kafka.calls.admin.config_sources import SOURCES, is_read_only, shown_entries
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.kafka.calls.places import NO_ID, RefusedError, answering
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.kafka.protocol.errors import Family, KafkaError
from fairlead_broker.kafka.protocol.messages import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
)
from fairlead_broker.runtime import Broker, TopicView

BY_ID_SINCE: Final = 6
"""First version of DeleteTopics that names topics by name or by id."""
DESCRIBED_SINCE: Final = 5
"""First version of CreateTopics whose answer describes the new topic."""
DEFAULT: Final = -1
"""Number of partitions or replicas that stands for the default of the cluster."""
REPLICAS_MAX: Final = 2**15 - 1


class TopicCalls:
    """Calls that create, delete and enlarge topics."""

    def __init__(self, broker: Broker, changes: Changes) -> None:
        self._broker = broker
        self._changes = changes

    def calls(self) -> Mapping[ApiKey, Any]:
        """Return the call of each API of this family."""
        return {
            ApiKey.CREATE_TOPICS: self.create,
            ApiKey.DELETE_TOPICS: self.delete,
            ApiKey.CREATE_PARTITIONS: self.create_partitions,
        }

    # -- creation

    async def create(self, call: KafkaCall) -> Reply:
        """Create topics, one after another; with `validate_only`, only check the request."""
        counts = Counter(topic.name for topic in call.request.topics)
        topics = []
        for topic in {each.name: each for each in call.request.topics}.values():
            result = CreateTopicsResponse.CreatableTopicResult(
                version=call.version, name=topic.name, topic_id=NO_ID, error_code=KafkaError.NONE, configs=[]
            )
            with answering(result, Family.TOPIC):
                if counts[topic.name] > 1:
                    raise RefusedError(KafkaError.INVALID_REQUEST, "the request names the topic twice")
                _describe(call, result, await self._created(call, topic))
            topics.append(result)
        return Reply(CreateTopicsResponse(version=call.version, topics=topics))

    async def _created(self, call: KafkaCall, wanted: Any) -> TopicView:
        """Create one topic and return it. Raises RefusedError or a problem."""
        check_topic_name(wanted.name)
        call.access.require(Operation.CREATE, Kind.TOPIC, wanted.name)
        request = _creation(wanted)
        if self._exists(wanted.name):
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {wanted.name} exists")
        if call.request.validate_only:
            view, _ = await self._broker.create_topic(request, dry_run=True)
            return view
        change = Change("create_topic", {}, partial(self._create, request), request)
        if await self._changes.make(call, change) is not HTTPStatus.CREATED:
            # HTTP clients may repeat a creation; Kafka clients may not.
            raise RefusedError(KafkaError.TOPIC_ALREADY_EXISTS, f"topic {wanted.name} exists")
        return self._broker.views.by_name(wanted.name)

    def _exists(self, name: str) -> bool:
        try:
            self._broker.views.by_name(name)
        except ProblemError:
            return False
        return True

    async def _create(self, request: CreateTopicRequest) -> Changed:
        view, created = await self._broker.create_topic(request)
        return Changed(
            HTTPStatus.CREATED if created else HTTPStatus.OK,
            {"topic": view.name, "partitions": view.partition_count},
        )

    # -- deletion

    async def delete(self, call: KafkaCall) -> Reply:
        """Delete topics with their records."""
        version, request = call.version, call.request
        if version < BY_ID_SINCE:
            named = [(name, None) for name in request.topic_names]
        else:
            named = [
                (each.name, None if each.topic_id == NO_ID else each.topic_id) for each in request.topics
            ]
        responses = []
        for name, topic_id in named:
            result = DeleteTopicsResponse.DeletableTopicResult(
                version=version, name=name, topic_id=topic_id or NO_ID, error_code=KafkaError.NONE
            )
            with answering(result, Family.TOPIC):
                view = self._deleted_topic(call, name, topic_id)
                result.name, result.topic_id = view.name, UUID(view.topic_id)
                await self._changes.make(call, self._deletion(view))
            responses.append(result)
        return Reply(DeleteTopicsResponse(version=version, responses=responses))

    def _deleted_topic(self, call: KafkaCall, name: str | None, topic_id: UUID | None) -> TopicView:
        """Return the topic that a request names by exactly one of name and id. Raises RefusedError or a problem."""
        if (name is None) is (topic_id is None):
            raise RefusedError(KafkaError.INVALID_REQUEST, "a topic is named by either its name or its id")
        if name is not None:
            call.access.require(Operation.DELETE, Kind.TOPIC, name)
            return self._broker.views.by_name(name)
        try:
            view = self._broker.views.by_id(TopicId(str(topic_id)))
        except ProblemError as problem:
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_ID, problem.detail) from problem
        if not call.access.sees(Kind.TOPIC, view.name):
            raise RefusedError(KafkaError.UNKNOWN_TOPIC_ID)
        return view

    def _deletion(self, view: TopicView) -> Change:
        async def run() -> Changed:
            await self._broker.delete_topic(view.name, view.topic_id)
            return Changed(HTTPStatus.NO_CONTENT)

        return Change(
            "delete_topic",
            {"topic": view.name},
            run,
            headers=(("fairlead-topic-id", view.topic_id),),
        )

    # -- partitions

    async def create_partitions(self, call: KafkaCall) -> Reply:
        """Add partitions to topics."""
        results = []
        for topic in call.request.topics:
            result = CreatePartitionsResponse.CreatePartitionsTopicResult(
                version=call.version, name=topic.name, error_code=KafkaError.NONE
            )
            with answering(result, Family.TOPIC):
                await self._enlarge(call, topic)
            results.append(result)
        return Reply(CreatePartitionsResponse(version=call.version, results=results))

    async def _enlarge(self, call: KafkaCall, wanted: Any) -> None:
        call.access.require(Operation.ALTER, Kind.TOPIC, wanted.name)
        view = self._broker.views.by_name(wanted.name)
        if not view.partition_count < wanted.count <= PARTITIONS_MAX:
            raise RefusedError(
                KafkaError.INVALID_PARTITIONS,
                f"topic {view.name} has {view.partition_count} partitions; "
                f"allowed are {view.partition_count + 1} to {PARTITIONS_MAX}, not {wanted.count}",
            )
        replicas = None
        if wanted.assignments is not None:
            replicas = [_brokers(each.broker_ids) for each in wanted.assignments]
            if len(replicas) != wanted.count - view.partition_count:
                raise RefusedError(
                    KafkaError.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(replicas)} assignments for {wanted.count - view.partition_count} new partitions",
                )
        if call.request.validate_only:
            return
        request = AlterTopicRequest(partitions=wanted.count, replicas=replicas)

        async def run() -> Changed:
            altered = await self._broker.alter_topic(view.name, request, view.topic_id)
            return Changed(audited={"partitions": altered.partition_count})

        await self._changes.make(call, Change("alter_topic", {"topic": view.name}, run, request))


def _creation(wanted: Any) -> CreateTopicRequest:
    """Return the request for a new topic in the form that the runtime takes. Raises RefusedError."""
    partitions, replicas = wanted.num_partitions, wanted.replication_factor
    if wanted.assignments and (partitions, replicas) != (DEFAULT, DEFAULT):
        raise RefusedError(
            KafkaError.INVALID_REQUEST, "a request with assignments has no number of partitions or replicas"
        )
    if partitions != DEFAULT and not 1 <= partitions <= PARTITIONS_MAX:
        raise RefusedError(
            KafkaError.INVALID_PARTITIONS, f"{partitions} partitions; allowed are 1 to {PARTITIONS_MAX}"
        )
    if replicas != DEFAULT and not 1 <= replicas <= REPLICAS_MAX:
        raise RefusedError(
            KafkaError.INVALID_REPLICATION_FACTOR, f"{replicas} replicas; allowed are 1 to {REPLICAS_MAX}"
        )
    config = {each.name: each.value for each in wanted.configs}
    empty = sorted(name for name, value in config.items() if value is None)
    if empty:
        raise RefusedError(KafkaError.INVALID_CONFIG, f"configuration key {empty[0]} has no value")
    return CreateTopicRequest(
        name=wanted.name,
        partitions=None if partitions == DEFAULT else partitions,
        replication_factor=None if replicas == DEFAULT else replicas,
        replicas=_assigned(wanted.assignments),
        config=config,
    )


def _assigned(assignments: Any) -> list[list[int]] | None:
    """Return the brokers of each partition of a new topic, if the request names them. Raises RefusedError."""
    if not assignments:
        return None
    brokers = {each.partition_index: _brokers(each.broker_ids) for each in assignments}
    if len(brokers) != len(assignments) or brokers.keys() != set(range(len(assignments))):
        raise RefusedError(
            KafkaError.INVALID_REPLICA_ASSIGNMENT, "the partitions of a new topic are numbered from 0 on"
        )
    return [brokers[number] for number in range(len(brokers))]


def _brokers(ids: Any) -> list[int]:
    """Return the brokers of one partition. Raises RefusedError."""
    if not ids or min(ids) < 0:
        raise RefusedError(
            KafkaError.INVALID_REPLICA_ASSIGNMENT, "a partition has brokers, whose ids are not negative"
        )
    return list(ids)


def _describe(call: KafkaCall, result: Any, view: TopicView) -> None:
    """Set the id, counts and configuration of a new topic; only newer versions of the answer have these fields."""
    if call.version < DESCRIBED_SINCE:
        return
    if not call.request.validate_only:
        result.topic_id = UUID(view.topic_id)
    if not call.access.sees(Kind.TOPIC, view.name):
        result.topic_config_error_code = KafkaError.TOPIC_AUTHORIZATION_FAILED
        return
    result.num_partitions, result.replication_factor = view.partition_count, view.replication_factor
    result.configs = [
        CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs(
            version=call.version,
            name=name,
            value=entry.value,
            read_only=is_read_only(name),
            config_source=SOURCES[entry.source],
            is_sensitive=False,
        )
        for name, entry in shown_entries(view.config_entries)
    ]
