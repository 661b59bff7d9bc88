"""Conditions for calls about transactions: access to a producer's transactions, and the cluster's feature level."""

from __future__ import annotations

from fairlead_api.access_needs import Kind, Operation
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.registry.transaction_records import TransactionRecord
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.transactions import transactions


def authorize(access: CallerAccess, record: TransactionRecord) -> None:
    """Raise `forbidden` if the caller is not allowed to change a producer's transactions.

    The resource is the name of the producer. A producer without a name belongs to the principal that created it.
    """
    if record.name is not None:
        access.require(Operation.WRITE, Kind.PRODUCER, record.name)
    elif access.owner is not None and record.owner is not None and access.owner != record.owner:
        access.require(Operation.WRITE, Kind.PRODUCER, "*")


def is_seen(access: CallerAccess, record: TransactionRecord) -> bool:
    """Return whether the caller may describe a producer's transactions."""
    if record.name is None and access.owner is not None and access.owner == record.owner:
        return True
    return access.sees(Kind.PRODUCER, record.name or "*")


def check_level(broker: Broker) -> None:
    """Raise `not_possible_now` if the cluster's feature level allows a release without transactions."""
    transactions.check_level(broker.feature_level)
