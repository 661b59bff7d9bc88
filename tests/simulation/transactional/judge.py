"""The invariants of transactions, each a named class of violation.

The judge sees every revision of the store, every committed batch and marker, every answer to a client, and everything
that readers of committed records receive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import ProducerEpoch, ProducerId, Revision
from fairlead_broker.registry.transaction_records import Outcome, TransactionRecord
from simulator.judge import Liveness, Violation
from simulator.store import Change
from transactional import guards
from transactional.messages import TOPIC, Input, Offset

if TYPE_CHECKING:
    from transactional.leading import Entry, Leadership, Partition
    from transactional.world import World

Transaction = tuple[ProducerId, ProducerEpoch]
KINDS: Final = {Outcome.COMMIT: MarkerKind.COMMIT, Outcome.ABORT: MarkerKind.ABORT}


class DecidedOnce(Violation):
    """A transaction was decided twice."""


class AnsweredAsDecided(Violation):
    """A client received an outcome that differs from the decision."""


class MarkerAsDecided(Violation):
    """A partition has a marker of a transaction that was not decided, or was decided differently."""


class NothingBehindAMarker(Violation):
    """A partition has a batch or a second marker of a transaction after the transaction's marker."""


class NoLateBatch(Violation):
    """A partition has a batch of a client's transaction after its marker, or after a batch of a later transaction.

    The numbers of the client's transactions decide, and not the epochs.
    """


class StableOffsetNeverBack(Violation):
    """The last stable offset decreased within a leadership."""


class CommittedReadersSeeCommitted(Violation):
    """A reader of committed records got a batch of an uncommitted transaction, or got a batch twice or out of order."""


class EveryTransactionEnds(Liveness):
    """A transaction has not ended in a partition some time after the last fault and the timeout."""


class OffsetsWithOutput(Violation):
    """An input was committed twice, or its offset was committed without its output."""


class Judge:
    """The truth about one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.counts: Counter[str] = Counter()
        self.decided: dict[Transaction, Outcome] = {}
        self.named: dict[Transaction, tuple[int, ...]] = {}
        """Partitions that each commit names."""
        self._acknowledged: dict[Transaction, tuple[int, frozenset[tuple[int, int]]]] = {}
        """Input and acknowledged batches of each transaction whose commit was requested."""
        self._marked: dict[int, set[Transaction]] = defaultdict(set)
        self._open: dict[tuple[int, ProducerId], int] = {}
        """Number of the client's newest transaction with a batch and no marker, by partition and producer."""
        self._over: dict[int, set[int]] = defaultdict(set)
        """Numbers of the clients' transactions that have batches and a marker, by partition."""
        self._read: dict[int, int] = defaultdict(int)
        self._seen: dict[int, list[tuple[Transaction, Input]]] = defaultdict(list)

    # -- the store

    def written(self, revision: Revision, changes: list[Change]) -> None:
        """Check a revision of the store."""
        committed: list[Transaction] = []
        moved = 0
        for key, before, after in changes:
            if after is None:
                continue
            if isinstance(after.value, TransactionRecord):
                old = None if before is None else before.value
                committed += self._record(ProducerId(key[1]), old, after.value)
            elif isinstance(after.value, Offset):
                moved += (Offset() if before is None else before.value).offset != after.value.offset
                self._offset(before and before.value, after.value)
        if len(committed) != moved and guards.has_own_epoch():
            message = f"revision {revision}: {moved} offsets change with the commits {committed}"
            raise OffsetsWithOutput(message)

    def _record(
        self, producer_id: ProducerId, before: TransactionRecord | None, after: TransactionRecord
    ) -> list[Transaction]:
        if before is not None and after.epoch < before.epoch:
            raise DecidedOnce(f"{producer_id} goes from epoch {before.epoch} to {after.epoch}")
        ended = after.ended
        if ended is None or (before is not None and ended == before.ended):
            return []
        transaction = (producer_id, ended.epoch)
        if transaction in self.decided and guards.has_own_epoch():
            message = f"{transaction} was decided as {self.decided[transaction]}, and then as {ended}"
            raise DecidedOnce(message)
        self.decided[transaction] = ended.outcome
        self.counts[f"{ended.outcome.value}s {ended.reason.value}"] += 1
        if ended.outcome is Outcome.ABORT:
            return []
        for commit in after.unfinished:
            if commit.epoch == ended.epoch:
                self.named[transaction] = commit.partitions[TOPIC]
        return [transaction]

    def _offset(self, before: Offset | None, after: Offset) -> None:
        old = 0 if before is None else before.offset
        if after.offset not in (old, old + 1) and guards.has_own_epoch():
            raise OffsetsWithOutput(f"the committed offset goes from {old} to {after.offset}")

    # -- clients

    def acknowledged(
        self, producer_id: ProducerId, epoch: ProducerEpoch, number: int, batches: frozenset[tuple[int, int]]
    ) -> None:
        """Note the input and the batches that a client commits."""
        self._acknowledged.setdefault((producer_id, epoch), (number, batches))

    def answered(self, producer_id: ProducerId, epoch: ProducerEpoch, outcome: Outcome | None) -> None:
        """Check the outcome that a client received."""
        decided = self.decided.get((producer_id, epoch))
        if outcome is not decided and guards.has_own_epoch():
            raise AnsweredAsDecided(
                f"{producer_id}.{epoch} was answered as {outcome}, but decided as {decided}"
            )

    # -- partitions

    def committed(self, partition: Partition, first: int) -> None:
        """Check the batches and markers that all in-sync replicas have from an offset on."""
        marked = self._marked[partition.index]
        for offset, entry in enumerate(partition.committed[first:], first):
            transaction = (entry.producer_id, entry.epoch)
            if guards.has_own_epoch():
                self._compare_marker(partition.index, offset, entry)
            self._follow(partition.index, offset, entry)
            if entry.marker is not None:
                marked.add(transaction)
                self.counts["markers"] += 1

    def _compare_marker(self, index: int, offset: int, entry: Entry) -> None:
        """Check that a batch or marker follows no marker of its epoch, and that a marker is as decided."""
        transaction = (entry.producer_id, entry.epoch)
        if transaction in self._marked[index]:
            raise NothingBehindAMarker(f"{index}@{offset}: {entry} is behind its marker")
        if entry.marker is None:
            return
        outcome = self.decided.get(transaction)
        named = index in self.named.get(transaction, ())
        expected = outcome if outcome is not Outcome.COMMIT or named else Outcome.ABORT
        if expected is None or entry.marker.kind is not KINDS[expected]:
            raise MarkerAsDecided(f"{index}@{offset}: {entry.marker}, decided as {expected}")

    def _follow(self, index: int, offset: int, entry: Entry) -> None:
        """Check that a batch follows no batch or marker of a later transaction of its client."""
        place = (index, entry.producer_id)
        if entry.value is None:
            if place in self._open:
                self._over[index].add(self._open.pop(place))
            return
        sent_in, newest = entry.value.transaction, self._open.get(place, 0)
        if sent_in in self._over[index] or sent_in < newest:
            raise NoLateBatch(f"{index}@{offset}: {entry}, transaction {newest} of its producer is open")
        self._open[place] = sent_in

    def read(self, leadership: Leadership) -> None:
        """Read committed records from the last position, up to the offset that the leader allows readers to read."""
        stable, index = leadership.stable_offset, leadership.partition.index
        if stable < leadership.stable_max:
            message = f"{index} goes back from {leadership.stable_max} to {stable}"
            raise StableOffsetNeverBack(message)
        leadership.stable_max = stable
        for offset in range(self._read[index], stable):
            entry = leadership.log[offset]
            if entry.value is not None and not guards.is_aborted(leadership, offset, entry.producer_id):
                self._got(index, offset, (entry.producer_id, entry.epoch), entry.value)
        self._read[index] = max(stable, self._read[index])

    def _got(self, index: int, offset: int, transaction: Transaction, value: Input) -> None:
        if not guards.has_own_epoch():
            return
        outcome = self.decided.get(transaction)
        if outcome is not Outcome.COMMIT:
            message = f"{index}@{offset}: {value} of {transaction}, decided as {outcome}"
            raise CommittedReadersSeeCommitted(message)
        before = [each for _, each in self._seen[index] if each.program == value.program]
        if before and (before[-1].number, before[-1].place) >= (value.number, value.place):
            raise CommittedReadersSeeCommitted(f"{index}@{offset}: {value} after {before[-1]}")
        self._seen[index].append((transaction, value))
        self.counts["read"] += 1

    # -- at rest

    def unended(self) -> str | None:
        """Return a transaction that has not ended in a partition, or None."""
        for partition in self._world.partitions:
            leadership = partition.leadership
            if leadership is None or leadership.known < len(leadership.log):
                return f"partition {partition.index} is not replicated"
            opened = list(leadership.producers.open_transactions())
            if opened:
                return f"partition {partition.index} has open transactions: {opened}"
        for transaction, named in self.named.items():
            missing = [each for each in named if transaction not in self._marked[each]]
            if missing and not self._is_passed(transaction, missing):
                return f"{transaction} has no marker in {missing}"
        return None

    def _is_passed(self, transaction: Transaction, partitions: list[int]) -> bool:
        """Return whether partitions without records of a transaction have a later epoch of its producer."""
        return all(
            any(
                each.producer_id == transaction[0] and each.epoch > transaction[1]
                for each in self._world.partitions[index].committed
            )
            for index in partitions
        )

    def compare(self) -> None:
        """Check at rest that every acknowledged batch of a committed transaction is visible, and no other batch."""
        for partition in self._world.partitions:
            assert partition.leadership is not None, "at rest"
            self.read(partition.leadership)
        visible = defaultdict(set)
        for index, seen in self._seen.items():
            for transaction, value in seen:
                visible[transaction].add((index, value.place))
        inputs: Counter[tuple[int, int]] = Counter()
        for transaction, outcome in self.decided.items() if guards.has_own_epoch() else ():
            if outcome is Outcome.COMMIT and transaction in self._acknowledged:
                number, batches = self._acknowledged[transaction]
                if visible[transaction] != batches:
                    message = (
                        f"{transaction} of input {number}: {sorted(batches)}, visible {visible[transaction]}"
                    )
                    raise OffsetsWithOutput(message)
                program = next(value.program for _, value in self._all_of(transaction))
                inputs[program, number] += 1
        twice = [each for each, count in inputs.items() if count > 1]
        if twice:
            raise OffsetsWithOutput(f"committed twice: {twice}")

    def _all_of(self, transaction: Transaction) -> list[tuple[Transaction, Input]]:
        return [each for seen in self._seen.values() for each in seen if each[0] == transaction]
