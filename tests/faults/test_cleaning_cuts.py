"""A short run of `cleaning_cuts.py`, and runs that must fail, over disks that break a promise."""

from __future__ import annotations

import pytest

from cleaning_cuts import Lost, Sizes, interrupt_all
from fairlead_broker.log import LogError
from lying_disk import Losses, Promises


def test_an_interruption_at_any_change_of_the_disk_keeps_the_newest_records() -> None:
    """After a loss of power or a kill at the n-th change, the next start finds a whole log, which can be cleaned again.

    `make prove PROVE=cleaning-cuts` tries every n for many histories.
    """
    losses = Losses()
    changes, _ = interrupt_all(25, Sizes(), losses, Promises(), batches=15, stride=7)

    assert changes > 40
    assert losses.names_lost


@pytest.mark.scenario
@pytest.mark.parametrize("switch", ["file_sync", "folder_sync"])
def test_a_disk_that_breaks_a_promise_is_noticed(switch: str) -> None:
    """Without syncs of files or of folders, a cleaning loses records."""
    with pytest.raises((Lost, LogError)):
        interrupt_all(25, Sizes(), Losses(), Promises(**{switch: False}), batches=15, stride=3)
