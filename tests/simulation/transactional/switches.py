"""Rules of transactions that can be dropped, in the order of the protocol's sections.

Rules of the shells (the code that runs the pure packages) are dropped in the simulator's twins of the shells. Rules of
the pure packages are dropped in the production code.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlead_api.batch.control_batches import Marker
from fairlead_broker.producers import EndDecided, PartitionProducers, ProducerState
from fairlead_broker.producers.effects import AppendMarker, OutOfOrder, ProducerFenced, Refuse
from fairlead_broker.producers.open_transactions import OpenTransactions
from fairlead_broker.producers.sequences import FIRST
from fairlead_broker.registry.transaction_records import EndReason, Outcome
from fairlead_broker.transactions import decisions
from fairlead_broker.transactions.decisions import Decided, DecidedOtherwise, Fenced, Write
from simulator.switches import Switch
from transactional import guards

_begin = decisions.begin
_written = decisions._decided
_decide = PartitionProducers._decide
_replay_marker = ProducerState.replay_marker


def _doubt_is_abort(decision: Any) -> None:
    decision.answer(decision.aborted)


def _begin_in_same_epoch(record: Any, request: Any, now_us: Any) -> Any:
    return _begin(record, request, now_us) if record is None else record


def _decided_in_same_epoch(record: Any, request: Any, *others: Any) -> Write:
    write = _written(record, request, *others)
    changed = msgspec.structs.replace(write.record, epoch=request.epoch)
    return Write(changed, Decided(request.outcome, request.epoch))


def _contradiction_to_fenced(record: Any, epoch: Any) -> Fenced | DecidedOtherwise:
    ended = record.ended
    if ended is None or ended.epoch != epoch:
        return Fenced(record.epoch)
    return DecidedOtherwise(ended.outcome, EndReason.CLIENT, epoch + 1)


def _ended_to_committed(record: Any, epoch: Any) -> Decided | None:
    """Take every ended transaction for a committed one."""
    return None if record is None else Decided(Outcome.COMMIT, epoch + 1, duplicate=True)


def _decide_without_fence(self: Any, batch: Any, *, is_lower: bool) -> Any:
    """Accept a batch that should be refused for its lower epoch, or for the marker of its epoch."""
    effect = _decide(self, batch)
    if not (isinstance(effect, Refuse) and isinstance(effect.refusal, ProducerFenced)):
        return effect
    return self._order(batch) if (batch.epoch < effect.refusal.current_epoch) is is_lower else effect


def _decide_next_in_same_epoch(self: Any, batch: Any) -> Any:
    """Accept the first batch behind a marker as the begin of the next transaction of the epoch."""
    effect = _decide(self, batch)
    is_fenced = isinstance(effect, Refuse) and isinstance(effect.refusal, ProducerFenced)
    if not is_fenced or batch.epoch < effect.refusal.current_epoch:
        return effect
    if batch.first_sequence != FIRST:
        refusal = OutOfOrder(batch.producer_id, batch.epoch, batch.first_sequence, FIRST)
        return Refuse(batch.request, refusal)
    front = self._fronts.get(batch.producer_id)
    if front is not None:
        front.is_ended = False
    return self._order(batch)


def _decide_behind_marker(self: Any, batch: Any) -> Any:
    return _decide_without_fence(self, batch, is_lower=False)


def _decide_lower_epoch(self: Any, batch: Any) -> Any:
    return _decide_without_fence(self, batch, is_lower=True)


def _decide_any_sequence(self: Any, batch: Any) -> Any:
    current = self._fronts.get(batch.producer_id) or self._state.producer(batch.producer_id)
    if current is not None and batch.epoch == current.epoch and not current.is_ended:
        return self._order(batch)
    if batch.first_sequence != FIRST and (current is None or batch.epoch > current.epoch):
        return self._order(batch) if self._open_below(batch) is None else None
    return _decide(self, batch)


def _end_repeatedly(self: Any, producer_id: Any) -> list[Any]:
    """Append every marker, and end the producer's open transaction, whichever it is."""
    effects: list[Any] = []
    waiting: list[EndDecided[Any]] = self._ends.pop(producer_id, [])
    for end in waiting:
        first = self._state.transactions.first_offsets.get(producer_id)
        self._ordered.append(end)
        marker = Marker(producer_id, end.epoch, end.kind, first, end.decided_us)
        effects.append(AppendMarker(end.request, marker))
    return effects


def _replay_any_marker(self: Any, producer_id: Any, epoch: Any, offset: Any, append_time_us: Any) -> None:
    """Apply a marker of any epoch to the open transaction."""
    before = self.producer(producer_id)
    _replay_marker(self, producer_id, max(epoch, before.epoch if before else epoch), offset, append_time_us)


SWITCHES: Final = (
    Switch(
        "record-compare",
        "7.1.1 a change of a producer's record compares the revision that was read",
        (guards, "compares", lambda key, revision: ()),
    ),
    Switch(
        "definite-answer",
        "7.1.1 a write without an answer is not treated as failed",
        (guards, "in_doubt", _doubt_is_abort),
    ),
    Switch(
        "epoch-of-each",
        "7.1.3 each transaction has its own producer epoch",
        (decisions, "_decided", _decided_in_same_epoch),
        (PartitionProducers, "_decide", _decide_next_in_same_epoch),
        (guards, "has_own_epoch", lambda: False),
    ),
    Switch(
        "commit-after-storing",
        "7.1.9 a request with batches and a commit is committed only after all its batches are stored",
        (guards, "commits", lambda answers: True),
    ),
    Switch(
        "repeat-as-decided",
        "7.1.9 a repeated request whose batches are refused is answered as committed only after a commit",
        (decisions, "committed", _ended_to_committed),
    ),
    Switch(
        "begin-fences",
        "7.1.2 a new transaction of a producer name has a higher epoch",
        (decisions, "begin", _begin_in_same_epoch),
    ),
    Switch(
        "fenced-learns-nothing",
        "7.1.5 a fenced process does not learn the next epoch",
        (decisions, "_contradiction", _contradiction_to_fenced),
    ),
    Switch(
        "offset-after-begin",
        "7.1.2 a client reads the committed offset only after it has begun its transaction",
        (guards, "reads_offset_after_begin", lambda: False),
    ),
    Switch(
        "offset-with-decision",
        "7.5 the offset of a group is stored in the same write as the decision",
        (guards, "writes_offset_with_decision", lambda: False),
    ),
    Switch(
        "commit-member-epoch",
        "7.5 only the current member commits an offset of its group",
        (guards, "may_commit", lambda found, member: True),
    ),
    Switch(
        "abort-by-decision",
        "7.3.3 a leader stores the abort of a transaction before it appends the marker",
        (guards, "decides_before_timeout", lambda: False),
    ),
    Switch(
        "resolve-before-higher",
        "7.2.3 a batch of a higher epoch waits for the end of the open transaction",
        (PartitionProducers, "_open_below", lambda self, batch: None),
    ),
    Switch(
        "fence-after-marker",
        "7.2.3 a batch behind the marker of its epoch is refused",
        (PartitionProducers, "_decide", _decide_behind_marker),
    ),
    Switch(
        "lower-epoch",
        "7.2.3 a batch with a lower epoch is refused",
        (PartitionProducers, "_decide", _decide_lower_epoch),
    ),
    Switch(
        "batch-sequence",
        "7.2.3 batches of a transaction are accepted only in the order of their sequences",
        (PartitionProducers, "_decide", _decide_any_sequence),
    ),
    Switch(
        "exact-marker",
        "7.2.5 a marker ends only its own transaction, and only once",
        (PartitionProducers, "_end", _end_repeatedly),
        (ProducerState, "replay_marker", _replay_any_marker),
    ),
    Switch(
        "confirmed-below-watermark",
        "7.3.4 a marker counts as confirmed only below the high watermark",
        (guards, "confirmed_from", lambda leadership, end: 0),
    ),
    Switch(
        "unfinished-stay",
        "7.3.4 a commit stays in the producer's record until its partitions have confirmed it",
        (decisions, "kept", lambda record, confirmed: ()),
    ),
    Switch(
        "commit-after-acknowledgements",
        "7.10 a client commits only after all its batches are acknowledged",
        (guards, "waits_for_acknowledgements", lambda client: False),
    ),
    Switch(
        "all-named",
        "7.10 a commit names every partition with a batch of the transaction",
        (guards, "named", lambda partitions: partitions[:1]),
    ),
    Switch(
        "stable-offset",
        "7.2.6 readers of committed records stop before open transactions",
        (OpenTransactions, "stable_offset", lambda self, high_watermark, log_start: high_watermark),
    ),
    Switch(
        "aborted-index",
        "7.4.1 readers of committed records skip aborted batches",
        (guards, "is_aborted", lambda leadership, offset, producer_id: False),
    ),
    Switch(
        "timeouts",
        "7.3.3 a transaction that exceeds its timeout is aborted",
        (guards, "ends_old_transactions", lambda: False),
    ),
    Switch(
        "looks",
        "7.3.2 leaders read the producer records of open transactions",
        (guards, "looks", lambda: False),
    ),
)
