"""Conditions for calls about transactions: access to a producer's transactions, and the cluster's feature level."""

from __future__ import annotations

from fairlead_api.access_needs import Kind, Operation
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.registry.transaction_records import TransactionRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.transactions import transactions
from fairlead_broker.runtime.transactions.transactions import HiddenProducer


def authorize(
    access: CallerAccess, record: TransactionRecord, operation: Operation = Operation.WRITE
) -> None:
    """Raise `forbidden` if the caller is not allowed to change a producer's transactions.

    The caller needs the operation on the name of the producer. A producer without a name belongs to the principal that
    created it; another principal needs `write` on every producer. Raises `HiddenProducer` if the caller may neither
    change nor describe the producer: a refusal with the name would reveal it to callers that try ids (rule Z7).
    """
    if record.name is None:
        if None in (access.owner, record.owner) or access.owner == record.owner:
            return
        operation = Operation.WRITE
    name = record.name or "*"
    if access.allows(operation, Kind.PRODUCER, name):
        return
    if not is_seen(access, record):
        raise HiddenProducer
    raise access.refusal(operation, Kind.PRODUCER, name)


def is_seen(access: CallerAccess, record: TransactionRecord) -> bool:
    """Return whether the caller may describe a producer's transactions."""
    if record.name is None and access.owner is not None and access.owner == record.owner:
        return True
    return access.sees(Kind.PRODUCER, record.name or "*")


def check_level(broker: Broker) -> None:
    """Raise `not_possible_now` if the cluster's feature level allows a release without transactions."""
    transactions.check_level(broker.feature_level)
