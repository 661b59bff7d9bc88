"""The next step of a mirror's partition after each answer from the source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.links.copying import (
    Append,
    Arrived,
    CopyStep,
    Cut,
    Expired,
    FaultReason,
    Gone,
    LogStart,
    MirrorLog,
    NoteRemoved,
    OnExpiry,
    OnTruncation,
    RaiseEpoch,
    Skip,
    SourceAnswer,
    Stop,
    Truncated,
    followed_start,
    next_step,
)
from fairlead_broker.replication.divergence import EpochEnd, EpochStart

LOG = MirrorLog(
    Offset(0),
    Offset(20),
    LeaderEpoch(6),
    (EpochStart(LeaderEpoch(2), Offset(0)), EpochStart(LeaderEpoch(5), Offset(10))),
)
EMPTY = MirrorLog(Offset(0), Offset(0), LeaderEpoch(1), ())
DELETED = EpochStart(LeaderEpoch(5), Offset(10))
PARTED = Truncated(EpochEnd(LeaderEpoch(2), Offset(15)))


def arrived(last_epoch: int | None, first_offset: int = 20) -> Arrived:
    """Return an answer from a source whose log starts at 3."""
    return Arrived(Offset(first_offset), None if last_epoch is None else LeaderEpoch(last_epoch), Offset(3))


@pytest.mark.parametrize(
    ("answer", "step"),
    [
        (arrived(None), Append(Offset(3))),
        (arrived(5), Append(Offset(3))),
        (arrived(6), RaiseEpoch(LeaderEpoch(7))),
        (arrived(9), RaiseEpoch(LeaderEpoch(10))),
        (arrived(5, first_offset=18), Cut(Offset(18))),
        (PARTED, Cut(Offset(10))),
        (Truncated(EpochEnd(LeaderEpoch(5), Offset(12))), Cut(Offset(12))),
        (Truncated(EpochEnd(LeaderEpoch(-1), Offset(0))), Cut(Offset(0))),
        (Expired(Offset(40)), Skip(Offset(40))),
        (Expired(Offset(40), DELETED), Skip(Offset(40), DELETED)),
        (Expired(Offset(40), EpochStart(LeaderEpoch(6), Offset(30))), RaiseEpoch(LeaderEpoch(7))),
        (Expired(Offset(20)), Stop(FaultReason.SOURCE_DAMAGED, Offset(20))),
        (Gone(), Stop(FaultReason.SOURCE_GONE, Offset(20))),
    ],
)
def test_each_answer_has_one_step(answer: SourceAnswer, step: CopyStep) -> None:
    """Only batches below the partition's epoch are appended; a truncation keeps every record that both logs have."""
    assert next_step(LOG, answer, OnTruncation.FOLLOW, OnExpiry.SKIP) == step


def test_a_log_without_a_common_record_is_emptied() -> None:
    """If the logs part below the log start, the mirror continues where they part, even if a policy stops it first."""
    epochs = (EpochStart(LeaderEpoch(2), Offset(5)), EpochStart(LeaderEpoch(5), Offset(10)))
    begun = replace(LOG, log_start=Offset(7), epochs=epochs)
    parted = Truncated(EpochEnd(LeaderEpoch(1), Offset(4)))

    assert next_step(begun, parted, OnTruncation.FOLLOW, OnExpiry.SKIP) == Cut(Offset(4))
    assert next_step(begun, parted, OnTruncation.STOP, OnExpiry.SKIP) == Stop(
        FaultReason.SOURCE_TRUNCATED, Offset(7)
    )


def test_a_mirror_without_records_takes_the_batch_around_its_start() -> None:
    """The source may have deleted records up to an offset inside a batch, and sends the whole batch."""
    begun = replace(EMPTY, log_start=Offset(3), end_offset=Offset(3), leader_epoch=LeaderEpoch(6))

    assert next_step(begun, arrived(5, first_offset=0), OnTruncation.FOLLOW, OnExpiry.SKIP) == Append(
        Offset(3)
    )


def test_policies_stop_a_partition() -> None:
    """With the policy `stop`, nothing is dropped or skipped; a mirror without records cannot miss any."""
    assert next_step(LOG, PARTED, OnTruncation.STOP, OnExpiry.SKIP) == Stop(
        FaultReason.SOURCE_TRUNCATED, Offset(10)
    )
    assert next_step(LOG, Expired(Offset(40)), OnTruncation.FOLLOW, OnExpiry.STOP) == Stop(
        FaultReason.SOURCE_EXPIRED, Offset(40)
    )
    assert next_step(EMPTY, Expired(Offset(40)), OnTruncation.FOLLOW, OnExpiry.STOP) == Skip(Offset(40))
    assert next_step(replace(EMPTY), arrived(1, 0), OnTruncation.STOP, OnExpiry.STOP) == RaiseEpoch(
        LeaderEpoch(2)
    )


def test_tombstones_that_the_source_removed_before_they_were_copied_are_a_gap() -> None:
    """A mirror with records may keep a record that the source has deleted; a mirror without records copies none."""
    swept = replace(arrived(5), removed_to=Offset(30))
    merged = replace(arrived(5, first_offset=18), removed_to=Offset(19))
    noted = replace(LOG, removed_to=Offset(30))
    from_the_start = replace(arrived(5, first_offset=0), removed_to=Offset(19))

    def step(log: MirrorLog, answer: Arrived, policy: OnExpiry = OnExpiry.SKIP) -> CopyStep:
        return next_step(log, answer, OnTruncation.FOLLOW, policy)

    assert step(LOG, swept) == NoteRemoved(Offset(30), Offset(20))
    assert step(LOG, merged) == NoteRemoved(Offset(19), Offset(18))
    assert step(LOG, from_the_start, OnExpiry.STOP) == Cut(Offset(0))
    assert step(LOG, swept, OnExpiry.STOP) == Stop(FaultReason.SOURCE_EXPIRED, Offset(30))
    assert step(EMPTY, replace(swept, first_offset=Offset(0)), OnExpiry.STOP) == NoteRemoved(Offset(30), None)
    assert step(noted, swept) == Append(Offset(3))
    assert step(LOG, replace(swept, removed_to=Offset(20))) == Append(Offset(3))


def test_a_mirror_with_its_own_log_start_follows_only_deletions_on_request() -> None:
    """Retention of the source moves the log start of other mirrors only, and no deletion exceeds the source's start."""
    assert followed_start(LogStart.SOURCE, Offset(9), Offset(4)) == 9
    assert followed_start(LogStart.OWN, Offset(9), Offset(4)) == 4
    assert followed_start(LogStart.OWN, Offset(9), Offset(12)) == 9
