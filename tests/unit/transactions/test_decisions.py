"""Decisions about transactions: every epoch is decided once, and answers contain the decision."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fairlead_api.transaction_id import EPOCH_MAX
from fairlead_broker.registry.records import decode, encode
from fairlead_broker.registry.transaction_records import (
    EndedTransaction,
    EndReason,
    Outcome,
    TransactionRecord,
    UnfinishedCommit,
)
from fairlead_broker.transactions.decisions import (
    PARTITIONS_MAX,
    UNFINISHED_MAX,
    UNNAMED_KEPT_US,
    Begin,
    Decide,
    Decided,
    DecidedOtherwise,
    Fenced,
    NotFound,
    TooManyPartitions,
    TooManyUnfinished,
    Write,
    begin,
    committed,
    decide,
    is_forgotten,
    name_partition,
    restored,
    retired,
    without_confirmed,
)
from fairlead_broker.transactions.outcomes import Finding, TransactionState, finding, state_of

ORDERS = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
LEDGER = "2c5f39cb-3fb2-4e4c-b406-f02ac6b8744c"
NOW = 1_000_000
COMMIT, ABORT = Outcome.COMMIT, Outcome.ABORT


def opened(epoch: int = 4, **fields: object) -> TransactionRecord:
    """Return the record of a producer with an open transaction."""
    given = {"name": "billing", "epoch": epoch, "timeout_ms": 60_000, "used_us": NOW, **fields}
    return TransactionRecord(**given)  # type: ignore[arg-type]


def written(result: object) -> TransactionRecord:
    """Return the record that a decision would write."""
    assert isinstance(result, Write), result
    return result.record


def commit(record: TransactionRecord | None, epoch: int, *partitions: int, **fields: object) -> object:
    """Commit a transaction with partitions of the topic `ORDERS`."""
    named = {ORDERS: partitions} if partitions else {}
    return decide(record, Decide(epoch, COMMIT, partitions=named, **fields), frozenset(), NOW)  # type: ignore[arg-type]


def abort(record: TransactionRecord | None, epoch: int, reason: EndReason = EndReason.CLIENT) -> object:
    """Abort a transaction."""
    return decide(record, Decide(epoch, ABORT, reason), frozenset(), NOW + 5)  # type: ignore[arg-type]


def test_a_new_producer_begins_at_epoch_0() -> None:
    """The first transaction of a producer has epoch 0, and its record has no ended transaction."""
    record = begin(None, Begin(5000, name="billing", owner="user:ann"), NOW)  # type: ignore[arg-type]

    assert record == TransactionRecord(
        name="billing",
        epoch=0,
        timeout_ms=5000,
        owner="user:ann",
        used_us=NOW,  # type: ignore[arg-type]
    )


def test_a_begin_aborts_what_is_open() -> None:
    """A begin aborts the open transaction as fenced and drops its partitions, but keeps unfinished commits."""
    kept = (UnfinishedCommit(epoch=2, partitions={ORDERS: (1,)}),)  # type: ignore[arg-type, dict-item]
    record = begin(opened(named={ORDERS: (3,)}, unfinished=kept), Begin(5000), NOW + 1)  # type: ignore[arg-type]

    assert record is not None
    assert (record.epoch, record.timeout_ms, record.named, record.unfinished) == (5, 5000, {}, kept)
    assert record.ended == EndedTransaction(epoch=4, outcome=ABORT, reason=EndReason.FENCED, at_us=NOW + 1)  # type: ignore[arg-type]
    assert commit(record, 4, 0) == Fenced(5)  # type: ignore[arg-type]
    assert abort(record, 4) == Fenced(5)  # type: ignore[arg-type]


def test_a_begin_above_an_epoch_skips_it() -> None:
    """After a restore of the store, a producer gets an epoch above its own, and skipped epochs count as aborted."""
    record = begin(opened(4), Begin(5000, above=9), NOW)  # type: ignore[arg-type]

    assert record is not None
    assert record.epoch == 10
    assert commit(record, 7, 0) == Fenced(10)  # type: ignore[arg-type]
    assert finding(record, 7, ORDERS, 0) is Finding.ABORT  # type: ignore[arg-type]


@pytest.mark.parametrize(("epoch", "above"), [(2**31 - 1, None), (2**31, None), (3, 2**31 - 1)])
def test_no_transaction_begins_behind_the_last_epoch(epoch: int, above: int | None) -> None:
    """A producer id whose epochs are used up begins no transaction, so the caller must use a new id."""
    assert begin(opened(epoch), Begin(5000, above=above), NOW) is None  # type: ignore[arg-type]


def test_a_commit_keeps_its_partitions_until_they_confirm() -> None:
    """A commit covers the partitions of the record and of the request, and opens the next epoch at once."""
    record = written(commit(opened(named={LEDGER: (0,), ORDERS: (2,)}), 4, 1, 2, metadata="batch 7"))

    assert (record.epoch, record.named, record.metadata) == (5, {}, "batch 7")
    assert record.unfinished == (UnfinishedCommit(epoch=4, partitions={ORDERS: (1, 2), LEDGER: (0,)}),)  # type: ignore[arg-type, dict-item]
    assert state_of(record, 4) is TransactionState.UNFINISHED  # type: ignore[arg-type]
    assert finding(record, 4, LEDGER, 0) is Finding.COMMIT  # type: ignore[arg-type]
    assert finding(record, 4, LEDGER, 1) is Finding.ABORT  # type: ignore[arg-type]
    assert decode("transactions/17", encode(record), TransactionRecord) == record


def test_confirmed_partitions_leave_the_record() -> None:
    """Confirmed partitions are removed from a record; a record that has none of these partitions is not written."""
    record = written(commit(opened(), 4, 1, 2))
    half = without_confirmed(record, {(4, ORDERS, 1)})  # type: ignore[arg-type]
    other = {(3, ORDERS, 1), (4, LEDGER, 2)}

    assert without_confirmed(record, other) is None  # type: ignore[arg-type]
    assert half is not None
    assert half.unfinished == (UnfinishedCommit(epoch=4, partitions={ORDERS: (2,)}),)  # type: ignore[arg-type, dict-item]
    whole = without_confirmed(half, {(4, ORDERS, 2)})  # type: ignore[arg-type]
    assert whole is not None
    assert (whole.unfinished, state_of(whole, 4)) == ((), TransactionState.ENDED)  # type: ignore[arg-type]


def test_only_a_committed_transaction_is_reported_as_committed() -> None:
    """The record reports its newest decided transaction as committed, but no aborted, open or earlier transaction."""
    record = written(commit(opened(), 4, 1))
    assert committed(record, 4) == Decided(COMMIT, 5, duplicate=True)  # type: ignore[arg-type]

    others = [
        (None, 4),
        (opened(), 4),
        (opened(), 3),
        (record, 5),
        (record, 3),
        (written(abort(opened(), 4)), 4),
    ]
    assert {committed(each, epoch) for each, epoch in others} == {None}  # type: ignore[arg-type]


def test_a_repeated_request_gets_the_first_answer() -> None:
    """A repeated commit or abort gets the same answer as the first request, marked as a duplicate."""
    committed, aborted = written(commit(opened(), 4, 1)), written(abort(opened(), 4))

    assert commit(committed, 4, 1) == Decided(COMMIT, 5, duplicate=True)  # type: ignore[arg-type]
    assert abort(aborted, 4) == Decided(ABORT, 5, duplicate=True)  # type: ignore[arg-type]
    assert abort(committed, 4) == DecidedOtherwise(COMMIT, EndReason.CLIENT, 5)  # type: ignore[arg-type]
    assert commit(aborted, 4) == DecidedOtherwise(ABORT, EndReason.CLIENT, 5)  # type: ignore[arg-type]


def test_a_timeout_is_reported_with_the_next_epoch() -> None:
    """After the timeout of a transaction, its producer gets the reason and the next epoch.

    An abort after a timeout does not renew the time of the record's last use.
    """
    record = written(abort(opened(), 4, EndReason.TIMEOUT))

    assert record.used_us == NOW
    assert commit(record, 4, 1) == DecidedOtherwise(ABORT, EndReason.TIMEOUT, 5)  # type: ignore[arg-type]


def test_a_commit_of_nothing_writes_nothing() -> None:
    """A commit without partitions, offsets and metadata is answered without a write, and the transaction stays open."""
    record = opened()

    assert commit(record, 4) == Decided(COMMIT, 4)  # type: ignore[arg-type]
    assert written(commit(record, 4, has_offsets=True)).unfinished == ()
    assert written(commit(record, 4, metadata="")).epoch == 5


def test_a_commit_is_refused_beyond_the_limits() -> None:
    """More partitions than allowed, and more unfinished commits than allowed, are refused before a write."""
    record: TransactionRecord = opened(0)
    for epoch in range(UNFINISHED_MAX):
        record = written(commit(record, epoch, 1))
    refused = commit(record, UNFINISHED_MAX, 1)
    confirmed = {(0, ORDERS, 1)}
    request = Decide(UNFINISHED_MAX, COMMIT, partitions={ORDERS: (1,)})  # type: ignore[arg-type, dict-item]
    named = opened(named={ORDERS: tuple(range(PARTITIONS_MAX))})

    assert refused == TooManyUnfinished(record.unfinished)
    assert isinstance(decide(record, request, confirmed, NOW), Write)  # type: ignore[arg-type]
    assert commit(opened(), 4, *range(PARTITIONS_MAX + 1)) == TooManyPartitions(PARTITIONS_MAX + 1)
    assert name_partition(named, 4, LEDGER, 0) == TooManyPartitions(PARTITIONS_MAX + 1)  # type: ignore[arg-type]
    assert isinstance(commit(named, 4, PARTITIONS_MAX - 1), Write)


def test_the_last_epoch_has_no_next() -> None:
    """The answer to the end of the last epoch contains no next epoch."""
    last = 2**31 - 1
    done = commit(opened(last), last, 1)

    assert isinstance(done, Write)
    assert done.answer == Decided(COMMIT, None)


def test_unknown_transactions_are_not_found() -> None:
    """A transaction is not found if its epoch is above that of its producer's record, or if no record exists."""
    for record in (None, opened(3)):
        assert commit(record, 4, 1) == NotFound()
        assert name_partition(record, 4, ORDERS, 1) == NotFound()  # type: ignore[arg-type]
        assert state_of(record, 4) is TransactionState.UNKNOWN  # type: ignore[arg-type]
    assert state_of(opened(4), 4) is TransactionState.OPEN  # type: ignore[arg-type]
    assert finding(opened(4), 4, ORDERS, 1) is Finding.OPEN  # type: ignore[arg-type]
    assert commit(opened(4), 3, 1) == Fenced(4)  # type: ignore[arg-type]


def test_partitions_are_named_once() -> None:
    """Adding a partition twice changes nothing, and partitions can only be added to the open transaction."""
    record = name_partition(opened(), 4, ORDERS, 7)  # type: ignore[arg-type]
    assert isinstance(record, TransactionRecord)
    ended = written(abort(record, 4, EndReason.TIMEOUT))

    assert record.named == {ORDERS: (7,)}
    assert name_partition(record, 4, ORDERS, 7) is record  # type: ignore[arg-type]
    assert name_partition(ended, 4, ORDERS, 8) == DecidedOtherwise(ABORT, EndReason.TIMEOUT, 5)  # type: ignore[arg-type]
    assert name_partition(ended, 3, ORDERS, 8) == Fenced(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epoch", "following"), [(4, 5), (EPOCH_MAX, EPOCH_MAX + 1), (EPOCH_MAX + 1, EPOCH_MAX + 1)]
)
def test_a_retired_producer_id_is_fenced(epoch: int, following: int) -> None:
    """The name leaves the record, and no epoch is open that a client knows; commits stay unfinished."""
    unfinished = (UnfinishedCommit(epoch=2, partitions={ORDERS: (1,)}),)  # type: ignore[arg-type, dict-item]
    record = retired(opened(epoch, unfinished=unfinished), NOW + 1)  # type: ignore[arg-type]

    assert (record.name, record.epoch, record.used_us) == (None, following, NOW + 1)
    assert record.unfinished == unfinished
    assert commit(record, min(epoch, EPOCH_MAX), 0) == Fenced(following)  # type: ignore[arg-type]


def test_a_restored_store_aborts_what_it_does_not_know() -> None:
    """After a restore of the store, a transaction above the epoch of its record is aborted in the record first."""
    record = opened(2)
    assert finding(record, 4, ORDERS, 0) is Finding.RESTORED  # type: ignore[arg-type]
    changed = restored(record, 4, NOW)  # type: ignore[arg-type]

    assert changed.epoch == 5
    assert finding(changed, 4, ORDERS, 0) is Finding.ABORT  # type: ignore[arg-type]
    assert commit(changed, 4, 0) == DecidedOtherwise(ABORT, EndReason.RESTORED, 5)  # type: ignore[arg-type]
    assert finding(None, 4, ORDERS, 0) is Finding.ABORT  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "kept_us"), [("billing", 7_000), (None, UNNAMED_KEPT_US)])
def test_unused_records_are_forgotten(name: str | None, kept_us: int) -> None:
    """A record expires some time after its last use, but never while it has an unfinished commit."""
    record = opened(name=name, timeout_ms=7)
    busy = opened(name=name, timeout_ms=7, unfinished=(UnfinishedCommit(epoch=2, partitions={ORDERS: (1,)}),))  # type: ignore[arg-type, dict-item]

    assert not is_forgotten(record, NOW + kept_us, 7_000)  # type: ignore[arg-type]
    assert is_forgotten(record, NOW + kept_us + 1, 7_000)  # type: ignore[arg-type]
    assert not is_forgotten(busy, NOW + kept_us + 1, 7_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["billing", None])
def test_a_record_is_not_forgotten_before_the_timeout_of_its_transaction(name: str | None) -> None:
    """A record expires only after the timeout of its open transaction, because the deletion aborts the transaction."""
    record = opened(name=name, timeout_ms=7_200_000)

    assert not is_forgotten(record, NOW + 7_200_000_000, 7_000)  # type: ignore[arg-type]
    assert is_forgotten(record, NOW + 7_200_000_001, 7_000)  # type: ignore[arg-type]


@dataclass
class Instance:
    """A producer process, with the epoch of its transaction and the requests that it has sent."""

    epoch: int
    sent: list[Decide] = field(default_factory=list)


class ManyInstances(RuleBasedStateMachine):
    """Processes of one producer name that begin, commit and abort, with late and repeated requests."""

    def __init__(self) -> None:
        """Start with a producer that has no record."""
        super().__init__()
        self.record: TransactionRecord | None = None
        self.instances: list[Instance] = []
        self.outcomes: dict[int, Outcome] = {}
        self.late: list[Decide] = []

    @rule(above=st.sampled_from([None, None, 2, 6]))
    def begin(self, above: int | None) -> None:
        """Start a process of the producer, which fences the earlier processes."""
        old = self.record
        record = begin(old, Begin(1000, name="n", above=above), NOW)  # type: ignore[arg-type]
        assert record is not None
        if old is not None:
            self._decided(old.epoch, ABORT)
        self.record = record
        self.instances.append(Instance(record.epoch))

    @rule(which=st.integers(0, 3), outcome=st.sampled_from(Outcome), partition=st.integers(0, 2))
    def decide(self, which: int, outcome: Outcome, partition: int) -> None:
        """Send a request from any process, and keep a copy that may arrive again later."""
        if self.instances:
            instance = self.instances[-1 - which % len(self.instances)]
            request = Decide(instance.epoch, outcome, partitions={ORDERS: (partition,)})  # type: ignore[arg-type, dict-item]
            self.late.append(request)
            answer = self._arrive(request)
            if isinstance(answer, Decided | DecidedOtherwise) and answer.next is not None:
                instance.epoch = answer.next

    @rule(which=st.integers(0, 9))
    def arrive_again(self, which: int) -> None:
        """Deliver an earlier request a second time."""
        if self.late:
            self._arrive(self.late[which % len(self.late)])

    @rule(reason=st.sampled_from([EndReason.TIMEOUT, EndReason.OPERATOR]))
    def end_by_the_cluster(self, reason: EndReason) -> None:
        """Abort the open transaction, as after its timeout or at an operator's request."""
        if self.record is not None:
            self._arrive(Decide(self.record.epoch, ABORT, reason))

    @rule(partition=st.integers(0, 2))
    def confirm(self, partition: int) -> None:
        """Confirm the oldest unfinished commit in one partition."""
        if self.record is not None and self.record.unfinished:
            epoch = self.record.unfinished[0].epoch
            self.record = without_confirmed(self.record, {(epoch, ORDERS, partition)}) or self.record  # type: ignore[arg-type]

    def _arrive(self, request: Decide) -> object:
        result = decide(self.record, request, frozenset(), NOW)  # type: ignore[arg-type]
        answer = result.answer if isinstance(result, Write) else result
        if isinstance(result, Write):
            assert self.record is not None
            assert request.epoch == self.record.epoch
            self._decided(request.epoch, request.outcome)
            self.record = result.record
        if isinstance(answer, Decided | DecidedOtherwise):
            assert self.outcomes[request.epoch] is answer.outcome
        return answer

    def _decided(self, epoch: int, outcome: Outcome) -> None:
        assert epoch not in self.outcomes, "a transaction is decided twice"
        self.outcomes[epoch] = outcome

    @invariant()
    def two_instances_never_share_an_open_transaction(self) -> None:
        """At most one process has the producer epoch whose transaction can be committed."""
        if self.record is not None:
            assert sum(each.epoch == self.record.epoch for each in self.instances) <= 1

    @invariant()
    def unfinished_transactions_are_committed(self) -> None:
        """Only committed transactions wait for confirmations."""
        if self.record is not None:
            assert all(self.outcomes[each.epoch] is COMMIT for each in self.record.unfinished)
            epochs = [each.epoch for each in self.record.unfinished]
            assert epochs == sorted(epochs)


TestManyInstances = ManyInstances.TestCase
