"""Sends the batches of the accumulator to the leaders and records their outcomes.

One task of the producer runs `Sender.run`: the task drains the batches that may be sent, starts a request for each
leader, handles each outcome according to the kind of problem, and sleeps until a deadline or a wake-up. The accumulator
decides which batches are sent, and `_settle` handles their outcomes. The functions before the class turn batches into
the request `POST /v1/produce` and its answer into outcomes, without I/O. The module must not depend on the public API.
The module is a single file because a request, its answer and the outcomes of its batches belong together.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import msgspec
from msgspec import UNSET

from fairlead import clock
from fairlead.connection.metadata import (
    LeaderCalls,
    MetadataCache,
    Picture,
    partition_not_found,
    topic_not_found,
)
from fairlead.connection.transport import Answer, Call, Transport, decoded, json_call
from fairlead.errors import (
    BatchTooLargeError,
    BodyTooLargeError,
    ClosedError,
    ClusterError,
    DeliveryTimeoutError,
    FairleadError,
    FencedError,
    NoLeaderError,
    ThrottledError,
    TopicIsMirrorError,
    TopicMovedError,
    UnreachableError,
    error_of,
)
from fairlead.producing.accumulator import Accumulator
from fairlead.producing.delivery import doubted
from fairlead.producing.fitting import fitting_bytes
from fairlead.producing.holding import Holding
from fairlead.producing.last_request import LastRequest, note_commit
from fairlead.producing.pending_batch import (
    SEQUENCE_CODES,
    UNKNOWN_PLACE,
    Acknowledgement,
    PartitionQueue,
    PendingBatch,
    ProducerIdentity,
)
from fairlead.producing.transactions import OpenTransaction
from fairlead.settings import KIB, MIB, ProducerSettings
from fairlead.topic_partition import TopicPartition
from fairlead.tracing import ProducerTracing
from fairlead_api.batch.header import Buffer, Codec
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import FRAMES, JSON, Header
from fairlead_api.bodies.requests import PartitionProduceResult, ProduceAnswer, ProduceFrameMeta
from fairlead_api.identifiers import Acks
from fairlead_api.problems import JSON as JSON_VALUE
from fairlead_api.problems import ProblemError, ProblemKind, SideEffect
from fairlead_api.routes.producers import AllocateProducerRequest, ProducerAnswer
from fairlead_api.timestamps import parse_timestamp_us

_DECODER: Final = msgspec.json.Decoder(ProduceAnswer)
_HEADERS: Final = {"content-type": FRAMES, "accept": JSON}


def produce_call(
    batches: Sequence[PendingBatch],
    topic_ids: Mapping[str, str],
    *,
    acks: Acks,
    codec: Codec,
    timeout_seconds: float,
    commit: str | None = None,
) -> Call:
    """Return the request that contains each batch as one frame; the bytes are copied only once.

    `commit`: transaction that the broker commits once all batches are stored.
    """
    parts: list[Buffer] = []
    for batch in batches:
        meta = ProduceFrameMeta(topic_id=topic_ids[batch.topic], partition=batch.partition)
        parts += encode_frame(meta, batch.encode(codec).parts)
    return Call(
        method="POST",
        # The values need no escaping, and a query builder would take longer than building the rest of the request.
        path=f"/v1/produce?acks={acks.value}&timeout_ms={round(timeout_seconds * 1000)}",
        subject=_subject(batches),
        headers=_HEADERS if commit is None else {**_HEADERS, Header.COMMIT_TRANSACTION: commit},
        body=b"".join(parts),
        timeout_seconds=timeout_seconds,
    )


def outcomes_of(
    answer: Answer, batches: Sequence[PendingBatch], topic_ids: Mapping[str, str], acks: Acks
) -> list[Acknowledgement | ClusterError]:
    """Return the outcomes of the batches, in the order of the batches.

    A batch that the answer does not mention fails with `internal` and never counts as stored. With acks=0, an answer
    has a body only if a batch was refused. If the answer shows that an earlier attempt committed the transaction, the
    batch is stored, but its offset may be unknown.
    """
    if acks is Acks.NONE and not answer.body:
        return [UNKNOWN_PLACE] * len(batches)
    document = _DECODER.decode(answer.body)
    answered = {(found.topic_id, found.partition): found for found in document.results}
    is_committed = document.committed is not UNSET
    outcomes: list[Acknowledgement | ClusterError] = []
    for batch in batches:
        found = answered.get((topic_ids[batch.topic], batch.partition))
        if is_committed and found is not None and found.base_offset is UNSET:
            outcomes.append(UNKNOWN_PLACE)
        else:
            outcomes.append(_outcome(found, batch, answer.broker, acks))
    return outcomes


def _outcome(
    found: PartitionProduceResult | None, batch: PendingBatch, broker: str, acks: Acks
) -> Acknowledgement | ClusterError:
    if found is None:
        problem = ProblemError("internal", "the answer lacks the partition", side_effect=SideEffect.MAYBE)
        return error_of(problem, subject=batch.subject, broker=broker)
    if found.problem is not UNSET:
        problem = ProblemError.from_document(cast("Mapping[str, JSON_VALUE]", found.problem))
        return error_of(problem, subject=batch.subject, broker=broker)
    if acks is Acks.NONE:
        return UNKNOWN_PLACE
    if found.base_offset is UNSET or found.log_append_time is UNSET or found.leader_epoch is UNSET:
        problem = ProblemError("internal", "the answer has no offset", side_effect=SideEffect.MAYBE)
        return error_of(problem, subject=batch.subject, broker=broker)
    return Acknowledgement(
        base_offset=found.base_offset,
        append_time_us=parse_timestamp_us(found.log_append_time, "log_append_time"),
        leader_epoch=found.leader_epoch,
        duplicate=found.duplicate is True,
    )


def _subject(batches: Sequence[PendingBatch]) -> str:
    first = batches[0]
    others = f" and {len(batches) - 1} other partitions" if len(batches) > 1 else ""
    return f"{first.subject}{others}"


async def take_identity(transport: Transport, name: str | None) -> ProducerIdentity:
    """Return a new producer id, or the next epoch of a producer name.

    A repeated call allocates another identity; an unused identity has no effect. Raises the errors of `Transport.call`.
    """
    subject = "producer id" if name is None else f"producer {name}"
    call = json_call("POST", "/v1/producers", subject, body=AllocateProducerRequest(name=name))
    answer = await transport.call(call)
    found = decoded(answer, ProducerAnswer, subject)
    return ProducerIdentity(found.producer_id, found.producer_epoch)


THREAD_COMPRESSED_BYTES: Final = 64 * KIB
THREAD_PLAIN_BYTES: Final = 8 * MIB
"""Minimum sizes, by codec, of a batch that is encoded in a thread. The handover to a thread costs about 100 µs:
compressing 64 KiB takes longer, whereas copying and checking an uncompressed MiB takes less."""
ONE_RECORD: Final = {
    BatchTooLargeError: "`max.message.bytes` of the topic",
    BodyTooLargeError: "`request_body_bytes_max` of the brokers",
}
"""Setting that must be raised so that a large record is accepted, keyed by the error that refused the record."""
REQUEST_SECONDS_MIN: Final = 1.0
"""Minimum request timeout, even if a batch expires sooner, because storing a batch takes time."""
SEARCH_SECONDS: Final = 0.15
"""Seconds between two metadata refreshes while a partition waits for a new leader."""


class Sender:
    """Sender of one accumulator's batches.

    `on_settled` is called after every outcome, `on_picture` after every refresh of the metadata, and `on_halted` with
    the reason when nothing more can be sent.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        metadata: MetadataCache,
        transport: Transport,
        settings: ProducerSettings,
        holding: Holding,
        *,
        on_settled: Callable[[PendingBatch], None],
        on_picture: Callable[[], None],
        on_halted: Callable[[FairleadError], None],
    ) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._transport = transport
        self._leader_calls = LeaderCalls(transport, metadata)
        self._tracing = ProducerTracing.at_hand()
        self._settings = settings
        self._request_bytes_max = settings.request_bytes_max
        """Maximum payload of a request, which is lowered when a broker refuses a request as too large and restored by
        the next metadata refresh."""
        self._backoff = transport.settings.backoff
        self._on_settled = on_settled
        self._on_picture = on_picture
        self._on_halted = on_halted
        self._awake = asyncio.Event()
        self._stopping = False
        self._in_flight: defaultdict[str, int] = defaultdict(int)
        self._holding = holding
        self.last_request = LastRequest()
        self._halted: FairleadError | None = None
        self._identifying: asyncio.Task[None] | None = None
        self._refresh: asyncio.Task[None] | None = None
        self._refresh_error: FairleadError | None = None
        self._search_at = 0.0
        self._drained_at = 0.0
        self._sleeps_until: float | None = None
        """Time at which the sleeping sender wakes; None while the sender is awake, since the sender checks every
        deadline before it sleeps."""
        self._identity_error: FairleadError | None = None

    def wake(self) -> None:
        """Wake the sender after a new batch, freed buffer space, or a stop."""
        self._awake.set()

    def wake_before(self, due: float) -> None:
        """Wake the sender now if it would sleep past `due`, so that it computes its next wake-up again."""
        if self._sleeps_until is not None and due < self._sleeps_until:
            self.wake()

    def stop(self) -> None:
        """Stop `run` once every batch has its outcome."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Send until stopped; after a cancellation, the caller must handle batches without an outcome."""
        async with asyncio.TaskGroup() as tasks:
            while not (self._stopping and not self._accumulator.unfinished):
                self._awake.clear()
                self._fail_expired()
                if self._accumulator.identity_wanted():
                    self._renew(tasks)
                if self._accumulator.seeks_leaders() and clock.monotonic() >= self._search_at:
                    self._start_refresh(tasks)
                while self._dispatch(tasks):
                    pass
                await self._encode_ahead()
                await self._sleep()
            for task in (self._refresh, self._identifying):
                if task is not None:
                    task.cancel()

    async def _sleep(self) -> None:
        # The deadline is computed as of the last pass: a batch that became due since then would otherwise be missed
        # until the batch expires.
        deadline = self._accumulator.next_deadline(self._drained_at)
        now = clock.monotonic()
        if deadline is not None and self._refresh is None and self._accumulator.seeks_leaders():
            deadline = min(deadline, self._search_at)
        self._sleeps_until = math.inf if deadline is None else deadline
        try:
            async with asyncio.timeout(None if deadline is None else max(deadline - now, 0)):
                await self._awake.wait()
        except TimeoutError:
            pass
        finally:
            self._sleeps_until = None

    def _dispatch(self, tasks: asyncio.TaskGroup) -> bool:
        """Start requests for the batches that may be sent now, one per partition.

        Return whether more requests could be started.
        """
        by_leader: defaultdict[str, list[PartitionQueue]] = defaultdict(list)
        picture = self._metadata.picture
        leaderless = dropped = False
        self._drained_at = clock.monotonic()
        for queue in self._accumulator.drain(self._drained_at):
            leader = picture.leader(queue.topic, queue.partition)
            if leader is not None:
                by_leader[leader].append(queue)
            elif queue.topic in picture.asked and queue.topic not in picture.topics:
                self._drop(queue.closed[0], topic_not_found(queue.topic))
                dropped = True
            elif (count := _fewer(queue, picture)) is not None:
                place = TopicPartition(queue.topic, queue.partition)
                self._drop(queue.closed[0], partition_not_found(place, count))
                dropped = True
            else:
                self._wait_for_leader(queue)
                leaderless = True
        started = [self._dispatch_to(leader, queues, tasks) for leader, queues in by_leader.items()]
        if leaderless or self._metadata.is_old:
            self._start_refresh(tasks)
        return dropped or any(started)

    def _dispatch_to(self, leader: str, queues: Sequence[PartitionQueue], tasks: asyncio.TaskGroup) -> bool:
        """Start requests to a broker up to its limit of requests in flight; return whether any request was started."""
        batches: list[PendingBatch] = []
        size = 0
        started = False
        now = clock.monotonic()
        if (until := self._holding.until(leader, now)) > now:
            for queue in queues:
                queue.retry_at = max(queue.retry_at, until)
            return False
        in_flight_max = self._holding.in_flight_max(leader, self._settings.requests_in_flight_max, now)
        for queue in queues:
            if batches and size + queue.closed[0].nbytes > self._request_bytes_max:
                self._start_request(leader, batches, tasks)
                batches, size, started = [], 0, True
            if self._in_flight[leader] >= in_flight_max:
                break
            batch = self._accumulator.start(queue)
            batches.append(batch)
            size += batch.nbytes
        if batches:
            self._start_request(leader, batches, tasks)
        return started or bool(batches)

    def _start_request(self, leader: str, batches: list[PendingBatch], tasks: asyncio.TaskGroup) -> None:
        self._in_flight[leader] += 1
        tasks.create_task(self._request(leader, batches, tasks), name=f"produce to {leader}")

    async def _request(self, leader: str, batches: list[PendingBatch], tasks: asyncio.TaskGroup) -> None:
        """Send one request and record the outcome of every batch in the request."""
        try:
            encoded = [batch for batch in batches if await self._encode(batch)]
            outcomes = await self._exchange(leader, encoded) if encoded else []
        finally:
            self._in_flight[leader] -= 1
        if len(outcomes) > 1 and isinstance(refusal := outcomes[0], BodyTooLargeError):
            self._send_fewer_at_once(encoded, refusal)
        else:
            for batch, outcome in zip(encoded, outcomes, strict=True):
                if self._settle(batch, outcome):
                    self._start_refresh(tasks)
                    if _leaves(outcome):
                        batch.queue.left_by = leader
        for batch in encoded:
            # After any outcome, waiting batches that come after a break and may be stored must not be sent again.
            self._drop_doubtful(batch.queue)
        self.wake()

    def _send_fewer_at_once(self, batches: Sequence[PendingBatch], refusal: BodyTooLargeError) -> None:
        """Retry the batches of a request that was too large for a broker, in several smaller requests."""
        payload_bytes = sum(batch.nbytes for batch in batches)
        encoded_bytes = sum(batch.encoded.nbytes for batch in batches if batch.encoded is not None)
        fitting = fitting_bytes(payload_bytes, encoded_bytes, _limit_of(refusal)) or 1
        self._request_bytes_max = min(self._request_bytes_max, fitting)
        for batch in batches:
            # The broker did not process the request, so the attempt does not count.
            batch.attempts -= 1
            self._accumulator.retry(batch, 0.0)

    async def _exchange(
        self, leader: str, batches: Sequence[PendingBatch]
    ) -> Sequence[Acknowledgement | FairleadError]:
        topics = self._metadata.picture.topics
        try:
            topic_ids = {batch.topic: topics[batch.topic].topic_id for batch in batches}
            transaction = self._committed_by(batches, topic_ids)
            call = produce_call(
                batches,
                topic_ids,
                acks=self._settings.acks,
                codec=self._settings.codec,
                timeout_seconds=self._seconds_for(batches),
                commit=None if transaction is None else transaction.id,
            )
            sending = self._ask(call, leader, batches)
            if transaction is None:
                answer = await sending
            else:
                answer = await self.last_request.answered(call, leader, sending)
                note_commit(transaction, answer)
            self._holding.hold(leader, answer.throttle_seconds, clock.monotonic())
            return outcomes_of(answer, batches, topic_ids, self._settings.acks)
        except FairleadError as error:
            if isinstance(error, ThrottledError):
                seconds = error.retry_after_seconds or 0.0
                self._holding.hold(leader, seconds, clock.monotonic())
            return [error] * len(batches)
        except KeyError as error:
            return [topic_not_found(str(error.args[0]))] * len(batches)
        except (ProblemError, msgspec.MsgspecError) as error:
            problem = ProblemError(
                "internal", f"the answer cannot be read: {error}", side_effect=SideEffect.MAYBE
            )
            return [error_of(problem, subject=batch.subject, broker=leader) for batch in batches]

    def _committed_by(
        self, batches: Sequence[PendingBatch], topic_ids: Mapping[str, str]
    ) -> OpenTransaction | None:
        """Return the transaction that is committed by the request with these batches, or None."""
        if self.last_request.transaction is None or len(batches) < self._accumulator.unfinished_count:
            return None
        return self.last_request.commits({(topic_ids[batch.topic], batch.partition) for batch in batches})

    def _seconds_for(self, batches: Sequence[PendingBatch]) -> float:
        """Return the request timeout, short enough that the broker's answer arrives before the batches expire."""
        left = self._accumulator.seconds_left(batches, clock.monotonic())
        return min(self._transport.settings.request_timeout_seconds, max(left, REQUEST_SECONDS_MIN))

    async def _ask(self, call: Call, leader: str, batches: Sequence[PendingBatch]) -> Answer:
        places = [(batch.topic, batch.partition) for batch in batches]
        if self._tracing is None:
            return await self._leader_calls.send(call, leader, places)
        with self._tracing.sending(batches) as carried:
            traced = replace(call, headers={**call.headers, **carried})
            return await self._leader_calls.send(traced, leader, places)

    async def _encode(self, batch: PendingBatch) -> bool:
        """Encode a batch; if encoding fails, fail the batch and return False."""
        codec = self._settings.codec
        limit = THREAD_PLAIN_BYTES if codec is Codec.NONE else THREAD_COMPRESSED_BYTES
        try:
            if batch.encoded is None and batch.nbytes >= limit:
                await asyncio.to_thread(batch.encode, codec)
            else:
                batch.encode(codec)
        except ProblemError as problem:
            self._drop(batch, error_of(problem, subject=batch.subject))
            return False
        return True

    async def _encode_ahead(self) -> None:
        """While requests are in flight, encode waiting batches until the sender is woken."""
        while not self._awake.is_set() and (batch := self._accumulator.encodable()) is not None:
            await self._encode(batch)
            await asyncio.sleep(0)  # noqa: TID251 - yields so that answers are handled, without a delay

    def _settle(self, batch: PendingBatch, outcome: Acknowledgement | FairleadError) -> bool:
        """Acknowledge, retry or fail a batch; return whether the metadata should be refreshed."""
        if isinstance(outcome, Acknowledgement):
            # A duplicate is also acknowledged: the acknowledgement contains the offset at which an earlier attempt
            # stored the batch.
            self._accumulator.finish(batch)
            batch.acknowledge(outcome)
            self._on_settled(batch)
            return False
        batch.last_error = outcome
        if isinstance(outcome, ClusterError | UnreachableError) and outcome.side_effect is SideEffect.MAYBE:
            batch.side_effect = SideEffect.MAYBE
        if isinstance(outcome, FencedError) and batch.stamp is not None:
            self._drop(batch, outcome)
            if not batch.stamp.is_transactional:
                # The answer to the commit or abort shows whether the producer is fenced or only its transaction has
                # ended.
                self._halt(outcome)
            return False
        if batch.stamp is not None and isinstance(outcome, ClusterError) and outcome.code in SEQUENCE_CODES:
            self._settle_out_of_order(batch, outcome)
            return False
        if isinstance(outcome, BatchTooLargeError | BodyTooLargeError):
            self._settle_too_large(batch, outcome)
            return False
        if self._is_followed(batch.topic, outcome):
            self._retry(batch)
            return True
        if not self._may_retry(batch, outcome):
            self._drop(batch, outcome)
            return False
        advice = outcome.retry_after_seconds if isinstance(outcome, ClusterError) else None
        self._retry(batch, advice)
        # A leader that is cut off from the other brokers might not have noticed that it lost the leadership: requests
        # to this broker time out.
        in_doubt = isinstance(outcome, ClusterError) and outcome.side_effect is SideEffect.MAYBE
        return in_doubt or _leaves(outcome)

    def _is_followed(self, topic: str, outcome: FairleadError) -> bool:
        """Return whether a refused batch waits for another cluster, because its topic is being handed over.

        A batch of a transaction fails, because only the first cluster can commit the transaction. If a followed topic
        has become a mirror, the first cluster knows where its records are accepted.
        """
        if isinstance(outcome, TopicMovedError):
            addresses = outcome.data.get("bootstrap")
            follows = isinstance(addresses, list) and self._metadata.follow(topic, map(str, addresses))
            return follows and self._settings.transactional is False
        return isinstance(outcome, TopicIsMirrorError) and self._metadata.go_back(topic, outcome.broker)

    def _settle_too_large(self, batch: PendingBatch, outcome: BatchTooLargeError | BodyTooLargeError) -> None:
        """Retry the records in smaller batches; a batch of a single record that is too large fails."""
        if batch.record_count == 1:
            advice = f"A single record is too large: make the record smaller, or raise {ONE_RECORD[type(outcome)]}."
            error = error_of(outcome.problem, subject=batch.subject, broker=outcome.broker, advice=advice)
            self._drop(batch, error)
        elif not self._accumulator.cut(batch, _limit_of(outcome)):
            self._drop(batch, outcome)

    def _settle_out_of_order(self, batch: PendingBatch, outcome: ClusterError) -> None:
        """Retry a batch after a missing earlier batch, or renew the identity if the earlier batch has failed."""
        sequences = batch.queue.sequences
        lost = batch.leads and not sequences.renews(batch.number) and sequences.refused(batch.number, outcome)
        if lost:
            # Acknowledged batches before this batch are missing from the log. The first batch after the missing batches
            # fails and thus reports the loss.
            self._drop(batch, outcome)
        else:
            self._retry(batch)

    def _retry(self, batch: PendingBatch, advice_seconds: float | None = None) -> None:
        retry_at = clock.monotonic() + self._backoff.seconds(batch.attempts, clock.chance(), advice_seconds)
        if self._accumulator.is_expired(batch, retry_at):
            self._drop(batch, self._timeout_of(batch))
        else:
            self._accumulator.retry(batch, retry_at)

    def _drop_doubtful(self, queue: PartitionQueue) -> None:
        for batch in self._accumulator.doubtful(queue):
            renewal = queue.sequences.renewal
            assert renewal is not None, "only a renewal makes batches doubtful"
            self._drop(batch, doubted(renewal.cause, batch.subject))

    def _may_retry(self, batch: PendingBatch, error: FairleadError) -> bool:
        retries_max = self._settings.retries_max
        if retries_max is not None and batch.attempts > retries_max:
            return False
        return isinstance(error, UnreachableError) or (isinstance(error, ClusterError) and error.retryable)

    def _drop(self, batch: PendingBatch, error: FairleadError) -> None:
        """Fail a batch that is waiting or in flight."""
        if batch.side_effect is SideEffect.MAYBE and getattr(error, "side_effect", None) is SideEffect.NONE:
            error = doubted(error, batch.subject)
        self._accumulator.give_up(batch, error)
        batch.fail(error)
        self._on_settled(batch)

    def _renew(self, tasks: asyncio.TaskGroup) -> None:
        """Renew the identity for the partitions that need a new identity."""
        if self._identifying is not None or self._halted is not None:
            return
        identity, renewals = self._accumulator.identity, self._accumulator.renewals()
        if identity is not None and identity.is_transactional:
            # A transaction with a failed batch can only be aborted.
            for batch in self._accumulator.take_unidentified():
                self._drop(batch, renewals[0].cause)
            return
        if identity is not None and self._settings.name is not None:
            # Only a starting producer may take the next epoch of its name: a running producer could fence its
            # successor.
            self._halt(renewals[0].cause)
        elif identity is not None and not any(renewal.new_id for renewal in renewals):
            self._accumulator.identity = identity.next_epoch()
        else:
            self._identifying = tasks.create_task(self._identify(), name="producer id")

    async def _identify(self) -> None:
        try:
            self._accumulator.identity = await take_identity(self._transport, self._settings.name)
            self._identity_error = None
        except ClosedError:
            raise
        except FairleadError as error:
            await self._no_identity(error)
        finally:
            self._identifying = None
            self.wake()

    async def _no_identity(self, error: FairleadError) -> None:
        """Keep the batches waiting after a retryable error; fail the batches after any other error."""
        if isinstance(error, UnreachableError) or (isinstance(error, ClusterError) and error.retryable):
            self._identity_error = error
            await asyncio.sleep(self._backoff.seconds(1, clock.chance()))  # noqa: TID251 - the pause before a retry
            return
        for batch in self._accumulator.take_unidentified():
            self._drop(batch, error)

    def _halt(self, error: FairleadError) -> None:
        """Stop sending: waiting batches fail now, and batches in flight wait for their answers."""
        self._halted = error
        self._on_halted(error)

    def abandon(self, error: FairleadError | None) -> None:
        """Fail waiting batches, and batches whose attempts fail, until the method is called with None."""
        self._halted = error
        self.wake()

    def _fail_expired(self) -> None:
        if self._halted is not None:
            for batch in self._accumulator.take_all():
                self._drop(batch, self._halted)
        for batch in self._accumulator.expire(clock.monotonic()):
            self._drop(batch, self._timeout_of(batch))

    def _timeout_of(self, batch: PendingBatch) -> DeliveryTimeoutError:
        error = DeliveryTimeoutError(
            batch.subject,
            record_count=batch.record_count,
            waited_seconds=clock.monotonic() - batch.created_at,
            attempts=batch.attempts,
            side_effect=batch.side_effect,
        )
        error.__cause__ = batch.last_error or self._identity_error or self._refresh_error
        return error

    def _wait_for_leader(self, queue: PartitionQueue) -> None:
        batch = queue.closed[0]
        problem = ProblemError("no_leader", f"{queue.topic}-{queue.partition} has no known leader")
        batch.last_error = NoLeaderError(problem, subject=batch.subject)
        queue.retry_at = clock.monotonic() + self._backoff.seconds(1, clock.chance())

    def _start_refresh(self, tasks: asyncio.TaskGroup) -> None:
        if self._refresh is None and not self._stopping_idle:
            self._refresh = tasks.create_task(self._take_picture(), name="metadata")

    @property
    def _stopping_idle(self) -> bool:
        return self._stopping and not self._accumulator.unfinished

    async def _take_picture(self) -> None:
        try:
            await self._metadata.refresh()
            self._refresh_error = None
            self._request_bytes_max = self._settings.request_bytes_max
            self._accumulator.hurry(self._metadata.picture.leader, clock.monotonic())
            self._on_picture()
        except ClosedError:
            raise
        except FairleadError as error:
            # Batches keep waiting, and their errors report this cause if the batches expire.
            self._refresh_error = error
        finally:
            self._refresh = None
            self._search_at = clock.monotonic() + SEARCH_SECONDS
            self.wake()


def _leaves(outcome: Acknowledgement | FairleadError) -> bool:
    """Return whether an error means that the leader did not answer, no longer leads, or refuses a moved topic."""
    if isinstance(outcome, TopicMovedError | TopicIsMirrorError):
        return True
    return not isinstance(outcome, ClusterError) or outcome.kind is ProblemKind.REFRESH


def _limit_of(refusal: ClusterError) -> int:
    """Return the limit that a refusal reports; return `sys.maxsize` if the refusal reports no limit."""
    limit = refusal.data.get("limit_bytes")
    return limit if isinstance(limit, int) else sys.maxsize


def _fewer(queue: PartitionQueue, picture: Picture) -> int | None:
    """Return the partition count of a topic that was recreated without this partition; in all other cases, return None.

    A topic never loses a partition, so metadata of the same topic without the partition is out of date.
    """
    found = picture.topics.get(queue.topic)
    if found is None or found.topic_id == queue.topic_id or queue.partition < len(found.partitions):
        return None
    return len(found.partitions)
