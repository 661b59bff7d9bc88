"""Encoding of a produce request, and outcomes from its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from fairlead.connection.transport import Answer, Call
from fairlead.errors import ClusterError, InternalServerError, NotLeaderError
from fairlead.producing.pending_batch import UNKNOWN_PLACE, Acknowledgement, PartitionQueue, RecordsBatch
from fairlead.producing.sender import outcomes_of, produce_call
from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import Codec, read_header
from fairlead_api.bodies.frames import iterate_frames
from fairlead_api.identifiers import Acks
from fairlead_api.problems import ProblemError, SideEffect

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC_IDS = {"flights": "1b4e28ba-2fa1-4d19-883f-0016d3cca427"}


@pytest.fixture
def batches(append: Callable[..., RecordsBatch]) -> list[RecordsBatch]:
    """Return two batches for two different partitions."""
    return [append(PartitionQueue("flights", index), f"value {index}".encode()) for index in range(2)]


def _call(batches: list[RecordsBatch], acks: Acks = Acks.ALL) -> Call:
    return produce_call(batches, TOPIC_IDS, acks=acks, codec=Codec.NONE, timeout_seconds=30)


def _answer(results: list[dict[str, object]]) -> Answer:
    return Answer(207, memoryview(msgspec.json.encode({"results": results})), None, "http://b:1")


def _stored(partition: int, **more: object) -> dict[str, object]:
    return {
        "topic_id": TOPIC_IDS["flights"], "partition": partition, "base_offset": 40, "last_offset": 40,
        "log_append_time": "1970-01-01T00:00:01.000000Z", "leader_epoch": 3, **more,
    }  # fmt: skip


def test_each_partition_is_a_frame_with_one_batch(batches: list[RecordsBatch]) -> None:
    """A produce request has a frame for each partition, which contains the encoded batch unchanged."""
    call = _call(batches)
    assert call.body is not None
    frames = list(iterate_frames(call.body))

    assert [msgspec.json.decode(frame.meta) for frame in frames] == [
        {"topic_id": TOPIC_IDS["flights"], "partition": index} for index in range(2)
    ]
    assert [read_header(frame.data).record_count for frame in frames] == [1, 1]
    assert decode_records(frames[1].data)[0].value == b"value 1"
    assert call.path == "/v1/produce?acks=all&timeout_ms=30000"
    assert call.subject == "produce to flights-0 and 1 other partitions"


def test_every_attempt_sends_the_same_bytes(batches: list[RecordsBatch]) -> None:
    """A batch is encoded once, and every attempt sends the same bytes, as idempotence requires."""
    assert _call(batches).body == _call(batches).body


def test_outcomes_follow_their_partition_not_their_place(batches: list[RecordsBatch]) -> None:
    """Outcomes are matched to batches by partition, not by order."""
    refused = {
        "topic_id": TOPIC_IDS["flights"],
        "partition": 0,
        "problem": ProblemError("not_leader", "ask broker 2").to_document(),
    }
    outcomes = outcomes_of(_answer([_stored(1, duplicate=True), refused]), batches, TOPIC_IDS, Acks.ALL)

    assert isinstance(outcomes[0], NotLeaderError)
    assert outcomes[0].subject == "produce to flights-0"
    assert outcomes[1] == Acknowledgement(40, 1_000_000, 3, duplicate=True)


@pytest.mark.parametrize("result", [[], [{"topic_id": TOPIC_IDS["flights"], "partition": 0}]])
def test_a_batch_without_an_outcome_is_never_taken_for_stored(
    batches: list[RecordsBatch], result: list[dict[str, object]]
) -> None:
    """A batch without an outcome or offset in the answer fails as possibly stored."""
    [outcome] = outcomes_of(_answer(result), batches[:1], TOPIC_IDS, Acks.ALL)

    assert isinstance(outcome, InternalServerError)
    assert outcome.side_effect is SideEffect.MAYBE


def test_without_acks_nothing_is_known(batches: list[RecordsBatch]) -> None:
    """A request with acks=0 is acknowledged without offsets."""
    answer = Answer(202, memoryview(b""), None, "http://b:1")

    assert outcomes_of(answer, batches, TOPIC_IDS, Acks.NONE) == [UNKNOWN_PLACE, UNKNOWN_PLACE]


def test_without_acks_a_refusal_is_an_outcome(batches: list[RecordsBatch]) -> None:
    """With acks=0, the outcome of a refused partition is the refusal, and the batch can be sent again."""
    moved = ProblemError("not_leader", "the leader is broker 2").to_document()
    refused = {"topic_id": TOPIC_IDS["flights"], "partition": 0, "problem": moved}
    accepted = {"topic_id": TOPIC_IDS["flights"], "partition": 1}

    first, second = outcomes_of(_answer([refused, accepted]), batches, TOPIC_IDS, Acks.NONE)

    assert isinstance(first, NotLeaderError)
    assert second == UNKNOWN_PLACE


def test_a_commit_is_a_header_of_the_request(batches: list[RecordsBatch]) -> None:
    """A request that also commits has the same body, and names the transaction in a header."""
    plain = _call(batches)
    commit = produce_call(
        batches, TOPIC_IDS, acks=Acks.ALL, codec=Codec.NONE, timeout_seconds=30, commit="17.4"
    )

    assert commit.body == plain.body
    assert commit.headers == {**plain.headers, "Fairlead-Commit-Transaction": "17.4"}


def test_a_batch_that_was_committed_before_needs_no_offset(batches: list[RecordsBatch]) -> None:
    """A committed batch without an offset in the answer is stored; a batch that the answer lacks may be stored."""
    committed = {"transaction": "17.4", "state": "committed", "next": "17.5", "duplicate": True}
    results = [{"topic_id": TOPIC_IDS["flights"], "partition": 0}]
    body = msgspec.json.encode({"results": results, "committed": committed})
    answer = Answer(200, memoryview(body), None, "http://b:1")

    first, second = outcomes_of(answer, batches, TOPIC_IDS, Acks.ALL)

    assert first == UNKNOWN_PLACE
    assert isinstance(second, InternalServerError)


def test_another_topic_of_the_same_partition_is_no_outcome(batches: list[RecordsBatch]) -> None:
    """Outcomes are matched by topic id, because a request may contain batches of several topics."""
    other = _stored(0, topic_id="2b4e28ba-2fa1-4d19-883f-0016d3cca427")
    [outcome] = outcomes_of(_answer([other]), batches[:1], TOPIC_IDS, Acks.ALL)

    assert isinstance(outcome, ClusterError)
