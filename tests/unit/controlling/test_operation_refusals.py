"""The refusal of an operation states the reason."""

from __future__ import annotations

from fairlead_api.identifiers import PartitionIndex
from fairlead_broker.controlling.operation_refusals import preferred_cannot_lead
from partition_kit import record
from refusals import missing


def test_preferring_a_leader_on_a_restored_record_is_refused() -> None:
    """If a partition record comes from a backup of the store, the refusal to elect its preferred leader says so."""
    known = preferred_cannot_lead("flights", PartitionIndex(0), record(2, "23"))
    restored = preferred_cannot_lead("flights", PartitionIndex(0), record(None, "1", restored=True))

    assert (missing(known.detail, 2, 3), missing(restored.detail, "backup")) == ([], [])
    assert "in sync" not in restored.detail
