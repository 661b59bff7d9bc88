"""A produce request as bytes and its answer as outcomes: `POST /v1/produce` with frames.

Called by the sender with the batches of one leader. Pure: bytes and documents in, outcomes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec
from msgspec import UNSET

from fairlead.connection.simple_calls import decoded
from fairlead.connection.transport import Answer, Call, Transport, json_call
from fairlead.errors import ClusterError, error_of
from fairlead.producing.pending_batch import UNKNOWN_PLACE, Acknowledgement, PendingBatch
from fairlead.producing.sequencing import ProducerIdentity
from fairlead_api.batch.header import Buffer, Codec
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import FRAMES, JSON
from fairlead_api.bodies.requests import PartitionProduceResult, ProduceAnswer, ProduceFrameMeta
from fairlead_api.identifiers import Acks
from fairlead_api.problems import JSON as JSON_VALUE
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_api.routes.producers import AllocateProducerRequest, ProducerAnswer
from fairlead_api.timestamps import parse_timestamp_us

_DECODER: Final = msgspec.json.Decoder(ProduceAnswer)


def produce_call(
    batches: Sequence[PendingBatch],
    topic_ids: Mapping[str, str],
    *,
    acks: Acks,
    codec: Codec,
    timeout_seconds: float,
) -> Call:
    """Return the request that carries each batch as one frame; the bytes are joined once."""
    parts: list[Buffer] = []
    for batch in batches:
        meta = ProduceFrameMeta(topic_id=topic_ids[batch.topic], partition=batch.partition)
        parts += encode_frame(meta, batch.encode(codec).parts)
    return Call(
        method="POST",
        # Both values need no escaping; a builder of queries takes longer for them than for all the rest of a request.
        path=f"/v1/produce?acks={acks.value}&timeout_ms={round(timeout_seconds * 1000)}",
        subject=_subject(batches),
        headers={"content-type": FRAMES, "accept": JSON},
        body=b"".join(parts),
        timeout_seconds=timeout_seconds,
    )


def outcomes_of(
    answer: Answer, batches: Sequence[PendingBatch], topic_ids: Mapping[str, str], acks: Acks
) -> list[Acknowledgement | ClusterError]:
    """Return the outcome of each batch in their order.

    A batch that the answer does not mention failed as `internal`: never taken for stored. With acks=0 a body comes only
    when a batch was refused.
    """
    if acks is Acks.NONE and not answer.body:
        return [UNKNOWN_PLACE] * len(batches)
    answered = {(found.topic_id, found.partition): found for found in _DECODER.decode(answer.body).results}
    return [
        _outcome(answered.get((topic_ids[batch.topic], batch.partition)), batch, answer.broker, acks)
        for batch in batches
    ]


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
    """Return a new producer id, or the next epoch of a name. Asked again, it is another one: nothing is lost by that.

    Raises the errors of `Transport.call`.
    """
    subject = "producer id" if name is None else f"producer {name}"
    call = json_call("POST", "/v1/producers", subject, body=AllocateProducerRequest(name=name))
    answer = await transport.call(call)
    found = decoded(answer, ProducerAnswer, subject)
    return ProducerIdentity(found.producer_id, found.producer_epoch)
