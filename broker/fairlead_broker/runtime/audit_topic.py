"""The topic `__audit`: records of the audit log, if the configuration of the cluster enables the topic (rule U1).

`audit_log` adds each line to a queue, which never delays a request; a full queue drops further lines and counts them.
Each broker stores its lines in one partition, at the leader of the partition, in event order. A line whose batch was
not acknowledged is sent again, so it may be stored twice. Standard error receives every line of the audit log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import Final

from fairlead_api.audit_events import AUDIT_TOPIC
from fairlead_api.batch.batches import encode_records
from fairlead_api.bodies.media_types import BATCHES
from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.configuration import ConfigInput
from fairlead_api.identifiers import Acks, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.peers.peers import Peers, PeerUnavailable, problem_of
from fairlead_broker.runtime.audit_log import AuditQueue
from fairlead_broker.runtime.hosting.replicas import Replicas
from fairlead_broker.runtime.leading.producing import ProduceItem, Producing
from fairlead_broker.runtime.topic_views import TopicView, TopicViews
from fairlead_broker.telemetry import Log

BATCH_LINES_MAX: Final = 500
"""Maximum number of lines in one batch, about 200 KB."""
PARTITIONS: Final = 3
RETENTION_MS: Final = 30 * 86_400_000
LOOK_SECONDS: Final = 1.0
"""Seconds between two checks of the configuration, and between two attempts to store a batch."""
STORE_SECONDS_MAX: Final = 10.0
"""Time limit for the acknowledgement of a batch."""


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """Components through which a broker creates, finds and writes a topic."""

    admin: TopicAdmin
    is_controller: Callable[[], bool]
    views: TopicViews
    replicas: Replicas
    producing: Producing
    peers: Peers


class AuditTopic:
    """Writer of the topic."""

    def __init__(self, queue: AuditQueue, topics: TopicAccess, log: Log) -> None:
        self._queue = queue
        self._topics = topics
        self._log = log
        self._failing = False

    async def run(self) -> None:
        """Store the lines of the queue, until cancelled."""
        queue = self._queue
        while True:
            is_wanted = queue.is_wanted
            if not is_wanted:
                queue.lines.clear()
            may_go_on = not is_wanted or await self._try()
            if not queue.lines:
                queue.filled.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    # After a failure, no event announces that the next attempt may succeed.
                    await (queue.filled if may_go_on else asyncio.Event()).wait()

    async def _try(self) -> bool:
        """Create the topic if it is missing, and store one batch; return whether the next batch may follow at once.

        After the first failure, further failures are not logged until the next success.
        """
        lines = list(islice(self._queue.lines, BATCH_LINES_MAX))
        try:
            topic = await self._topic()
            if topic is None:
                return False
            if lines:
                await self._store(topic, lines)
        except (ProblemError, PeerUnavailable) as problem:
            if not self._failing:
                self._log.warning(
                    "records of the audit log are not stored", topic=AUDIT_TOPIC, reason=str(problem)
                )
            self._failing = True
            return False
        self._failing = False
        for _ in lines:
            self._queue.lines.popleft()
        return True

    async def _topic(self) -> TopicView | None:
        """Return the topic; None until the controller has created the topic."""
        topics = self._topics
        try:
            return topics.views.by_name(AUDIT_TOPIC)
        except ProblemError as problem:
            if problem.code != "topic_not_found" or not topics.is_controller():
                return None
        config: dict[str, ConfigInput] = {"retention.ms": RETENTION_MS}
        await topics.admin.create(CreateTopicRequest(name=AUDIT_TOPIC, partitions=PARTITIONS, config=config))
        await topics.replicas.settled()
        return topics.views.by_name(AUDIT_TOPIC)

    async def _store(self, topic: TopicView, lines: list[tuple[bytes, int]]) -> None:
        """Store lines in this broker's partition of the topic. Raises `ProblemError` and `PeerUnavailable`."""
        topics = self._topics
        own = topics.peers.own.broker
        index = PartitionIndex(own % topic.partition_count)
        batch = encode_records([line for line, _ in lines], None, [at_us for _, at_us in lines]).to_bytes()
        record = topic.partitions.get(index)
        leader = None if record is None or record.leader is None else record.leader.broker
        if leader in (None, own):
            item = ProduceItem(topics.replicas.find(topic.topic_id, index), memoryview(batch))
            [result] = await topics.producing.produce(
                [item], acks=Acks.ALL, timeout_seconds=STORE_SECONDS_MAX
            )
            if isinstance(result, ProblemError):
                raise result
            return
        assert leader is not None, "a leader elsewhere"
        answer = await topics.peers.call(
            leader,
            "POST",
            f"/v1/topics/{AUDIT_TOPIC}/partitions/{index}/records?timeout_ms={round(STORE_SECONDS_MAX * 1000)}",
            headers=[("content-type", BATCHES)],
            body=batch,
            timeout_seconds=STORE_SECONDS_MAX + 1,
        )
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise problem_of(answer)
