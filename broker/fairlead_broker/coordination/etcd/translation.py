"""Conversion between Fairlead's types and etcd's messages.

`client` and `watch` use this module. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, assert_never

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.etcd import etcd_pb2 as messages
from fairlead_broker.coordination.protocol import DeleteEvent, Event, PutEvent, WatchBatch
from fairlead_broker.registry.store_writes import (
    Compare,
    CreateRevision,
    Delete,
    Get,
    KeyValue,
    LeaseId,
    ModRevision,
    Operation,
    Put,
    Relation,
    TransactionResult,
    Value,
)

WHOLE_RANGE: Final = b"\x00"
"""Key that means the lowest possible key as the start of a range, and no upper bound as the end of a range."""
_RESULTS: Final = {
    Relation.EQUAL: messages.Compare.EQUAL,
    Relation.NOT_EQUAL: messages.Compare.NOT_EQUAL,
    Relation.GREATER: messages.Compare.GREATER,
    Relation.LESS: messages.Compare.LESS,
}


def key_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key with a prefix and the first key above the prefix.

    Keys are ASCII, so the last byte can be incremented.
    """
    start = prefix.encode("ascii")
    if not start:
        return WHOLE_RANGE, WHOLE_RANGE
    return start, start[:-1] + bytes((start[-1] + 1,))


def key_after(key: str) -> bytes:
    """Return the smallest key above the given key."""
    return key.encode("ascii") + b"\x00"


def key_value(item: messages.KeyValue) -> KeyValue:
    """Convert a key with its value from etcd's message."""
    return KeyValue(
        item.key.decode("ascii"),
        item.value,
        Revision(item.create_revision),
        Revision(item.mod_revision),
        LeaseId(item.lease) if item.lease else None,
    )


def transaction_request(
    compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> messages.TxnRequest:
    """Convert a transaction to etcd's message."""
    return messages.TxnRequest(
        compare=[_compare(each) for each in compares],
        success=[_operation(each) for each in success],
        failure=[_operation(each) for each in failure],
    )


def transaction_result(answer: messages.TxnResponse) -> TransactionResult:
    """Convert the answer to a transaction from etcd's message."""
    reads: list[KeyValue | None] = []
    deleted = 0
    for each in answer.responses:
        if each.HasField("response_range"):
            found = each.response_range.kvs
            reads.append(key_value(found[0]) if found else None)
        deleted += each.response_delete_range.deleted
    return TransactionResult(answer.succeeded, Revision(answer.header.revision), tuple(reads), deleted)


def watch_batches(events: Iterable[messages.Event], from_revision: Revision) -> Iterator[WatchBatch]:
    """Group events by revision into batches, leaving out events below a revision."""
    for revision, group in groupby(events, lambda event: event.kv.mod_revision):
        if revision >= from_revision:
            yield WatchBatch(Revision(revision), tuple(_event(each) for each in group))


def _event(event: messages.Event) -> Event:
    if event.type == messages.Event.DELETE:
        return DeleteEvent(event.kv.key.decode("ascii"))
    return PutEvent(key_value(event.kv))


def _compare(compare: Compare) -> messages.Compare:
    key, result = compare.key.encode("ascii"), _RESULTS[compare.relation]
    match compare:
        case CreateRevision():
            return messages.Compare(
                key=key, result=result, target=messages.Compare.CREATE, create_revision=compare.revision
            )
        case ModRevision():
            return messages.Compare(
                key=key, result=result, target=messages.Compare.MOD, mod_revision=compare.revision
            )
        case Value():
            return messages.Compare(
                key=key, result=result, target=messages.Compare.VALUE, value=compare.value
            )
        case _:
            assert_never(compare)


def _operation(operation: Operation) -> messages.RequestOp:
    key = operation.key.encode("ascii")
    match operation:
        case Put():
            put = messages.PutRequest(key=key, value=operation.value, lease=operation.lease_id or 0)
            return messages.RequestOp(request_put=put)
        case Delete():
            return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=key))
        case Get():
            return messages.RequestOp(request_range=messages.RangeRequest(key=key))
        case _:
            assert_never(operation)
