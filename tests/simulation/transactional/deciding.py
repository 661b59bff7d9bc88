"""A decision at a broker: reads of records, and a compare-and-set whose outcome may stay unknown (rule 7.1.1).

This twin of `fairlead_broker.runtime.transactions.decision_writes` uses the pure package `transactions` to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fairlead_api.identifiers import ProducerId, TimestampUs
from fairlead_broker.registry.transaction_records import TransactionRecord
from simulator.store import Item, Key, Transaction
from transactional import guards
from transactional.messages import Answer, Offset, Refused, offset_key, transaction_key

if TYPE_CHECKING:
    from transactional.broker import Broker

PATIENCE_SECONDS: Final = 3.0
"""Time for which a broker attempts a decision."""
AGAIN_SECONDS: Final = 0.2
UNKNOWN: Final = Refused("coordination_unavailable")
Change = Callable[[TransactionRecord | None, TimestampUs], "tuple[TransactionRecord | None, Answer]"]
"""Function that receives the stored record and returns the record to write, or None, and the answer."""


class Decision:
    """One change to a producer's record, with an offset of a group if the change is a commit."""

    def __init__(
        self,
        broker: Broker,
        producer_id: ProducerId,
        change: Change,
        answer: Callable[[Answer], None],
        offset: tuple[int, int, int] | None = None,
        aborted: Answer = UNKNOWN,
    ) -> None:
        """`offset`: program, offset and member of a commit. `aborted`: answer as if the transaction was aborted."""
        self.aborted = aborted
        self.broker = broker
        self.producer_id = producer_id
        self._change = change
        self.answer = answer
        self._offset = offset
        self._deadline = broker.world.now + PATIENCE_SECONDS

    def begin(self) -> None:
        """Decide on the basis of the record in memory if there is one; otherwise read the record first."""
        standing = self.broker.cache.get(self.producer_id)
        if standing is None or self._offset is not None:
            self.read()
        else:
            self._decide(standing, None, is_fresh=False)

    def read(self) -> None:
        """Read the record, unless the time for the decision has elapsed."""
        if self.broker.world.now >= self._deadline:
            self.answer(UNKNOWN)
            return
        items = self.broker.world.store.items
        key, other = transaction_key(self.producer_id), self._offset_key

        def request() -> tuple[Item | None, Item | None]:
            return items.get(key), None if other is None else items.get(other)

        self.broker.ask_store(request, self._read)

    @property
    def _offset_key(self) -> Key | None:
        return None if self._offset is None else offset_key(self._offset[0])

    def _read(self, found: tuple[Item | None, Item | None] | None) -> None:
        if found is None:
            self.broker.after(AGAIN_SECONDS, self.read)
            return
        item, offset = found
        standing = (None, 0) if item is None else (item.value, item.mod_revision)
        self.broker.cache[self.producer_id] = standing
        self._decide(standing, offset, is_fresh=True)

    def _decide(
        self, standing: tuple[TransactionRecord | None, int], offset: Item | None, *, is_fresh: bool
    ) -> None:
        now_us = TimestampUs(round(self.broker.world.now * 1e6))
        record, answer = self._change(standing[0], now_us)
        if record is None:
            if is_fresh:
                self.answer(answer)
            else:
                self.read()
            return
        key = transaction_key(self.producer_id)
        compares = guards.compares(key, standing[1])
        puts: list[tuple[Key, Any, int | None]] = [(key, record, None)]
        apart: list[tuple[Key, Any, int | None]] = []
        if self._offset is not None:
            program, following, member = self._offset
            before, revision = (Offset(), 0) if offset is None else (offset.value, offset.mod_revision)
            if self.broker.world.plan.has_group and not guards.may_commit(before, member):
                self.answer(Refused("stale_member_epoch"))
                return
            put = (offset_key(program), Offset(before.owner, following), None)
            (puts if guards.writes_offset_with_decision() else apart).append(put)
            if guards.writes_offset_with_decision():
                compares = (*compares, *guards.compares(offset_key(program), revision))
        store = self.broker.world.store
        transaction = Transaction(compares, tuple(puts))
        self.broker.ask_store(lambda: store.transact(transaction), self._written, record, answer, apart)

    def _written(
        self,
        result: tuple[bool, int] | None,
        record: TransactionRecord,
        answer: Answer,
        apart: list[tuple[Key, Any, int | None]],
    ) -> None:
        if result is None:
            self.broker.cache.pop(self.producer_id, None)
            guards.in_doubt(self)
        elif not result[0]:
            self.read()
        else:
            self.broker.cache[self.producer_id] = (record, result[1])
            store = self.broker.world.store
            if apart:
                self.broker.ask_store(lambda: store.transact(Transaction((), tuple(apart))), guards.ignored)
            self.broker.report(self.producer_id, record)
            self.answer(answer)
