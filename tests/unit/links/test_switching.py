"""The order of the steps of a promotion."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex
from fairlead_broker.links.switching import CopiedTo, Known, SwitchStep, is_beyond, next_switch_step
from fairlead_broker.registry.records import MirrorState

FIRST = PartitionIndex(0)
END = {FIRST: CopiedTo(Offset(9), LeaderEpoch(3))}
ERA = LeaderEpoch(1 << 20)


@pytest.mark.parametrize(
    ("state", "known", "step"),
    [
        (MirrorState.MIRRORING, Known(), None),
        (MirrorState.HANDING_OVER, Known(), SwitchStep.HAND_OVER),
        (MirrorState.HANDING_OVER, Known(END), SwitchStep.WAIT),
        (MirrorState.HANDING_OVER, Known(END, {FIRST: CopiedTo(Offset(8), LeaderEpoch(3))}), SwitchStep.WAIT),
        (MirrorState.HANDING_OVER, Known(END, {FIRST: CopiedTo(Offset(9), LeaderEpoch(2))}), SwitchStep.WAIT),
        (MirrorState.HANDING_OVER, Known(END, {FIRST: CopiedTo(Offset(8), None)}), SwitchStep.WAIT),
        (MirrorState.HANDING_OVER, Known(END, END), SwitchStep.COPY_GROUPS),
        (MirrorState.HANDING_OVER, Known(END, {FIRST: CopiedTo(Offset(9), None)}), SwitchStep.COPY_GROUPS),
        (MirrorState.HANDING_OVER, Known(END, END, groups_copied=True), SwitchStep.BEGIN_PROMOTION),
        (MirrorState.HANDING_OVER, Known(is_overdue=True), SwitchStep.BEGIN_PROMOTION),
        (MirrorState.HANDING_OVER, Known(END, is_overdue=True), SwitchStep.BEGIN_PROMOTION),
        (MirrorState.PROMOTING, Known(partitions_without_era=1), SwitchStep.CHOOSE_ERA),
        (MirrorState.PROMOTING, Known(era=ERA, partitions_without_era=1), SwitchStep.BEGIN_ERAS),
        (MirrorState.PROMOTING, Known(era=ERA), SwitchStep.FINISH),
    ],
)
def test_each_state_and_what_is_known_have_one_step(
    state: MirrorState, known: Known, step: SwitchStep | None
) -> None:
    """A mirror is promoted when it has the last record of a source that refuses records, or when a failover is due."""
    assert next_switch_step(state, known) is step


def test_a_mirror_beyond_the_ends_asks_the_source_again() -> None:
    """The end of a source with a write quorum moves when its leader changes, so a mirror may pass it."""
    beyond = {FIRST: CopiedTo(Offset(10), LeaderEpoch(4))}

    assert next_switch_step(MirrorState.HANDING_OVER, Known(END, beyond)) is SwitchStep.WAIT
    assert is_beyond(Known(END, beyond))
    assert not is_beyond(Known(END, END))
    assert not is_beyond(Known(END))
    assert not is_beyond(Known())
