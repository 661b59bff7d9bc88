"""A broker's trust in its data directory at startup: a loss of power, and an older copy of the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch
from fairlead_broker.log.documents import Identity
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica
from fairlead_broker.runtime.lifecycle import directory_trust
from fairlead_broker.runtime.lifecycle.directory_trust import (
    kept_since,
    names_a_newer_incarnation,
    residence_of,
)

IDENTITY = Identity(cluster_id="c", broker_id=1, directory_id="d1", last_broker_epoch=40)
PRESENT = BrokerEpoch(70)
HERE = "boot/volume"


def record(
    *, isr: tuple[int, int] | None = None, elr: tuple[int, int] | None = None, home: str
) -> PartitionRecord:
    """Return a partition record of broker 1 in a directory, with an incarnation of a broker in its ISR or ELR."""

    def entries(entry: tuple[int, int] | None) -> tuple[InSync, ...]:
        return (
            () if entry is None else (InSync(broker=BrokerId(entry[0]), broker_epoch=BrokerEpoch(entry[1])),)
        )

    return PartitionRecord(
        leader=None,
        leader_epoch=LeaderEpoch(3),
        replicas=(Replica(broker=BrokerId(1), directory=home), Replica(broker=BrokerId(2), directory="d2")),
        isr=entries(isr),
        elr=entries(elr),
        min_isr=1,
        durability=DurabilityState.REPLICATED,
        unclean=False,
    )


@pytest.mark.parametrize(
    ("counted", "newer"),
    [
        (record(isr=(1, 40), home="d1"), False),
        (record(isr=(1, 41), home="d1"), True),
        (record(elr=(1, 69), home="d1"), True),
        (record(isr=(1, 41), home="another"), False),
        (record(isr=(2, 60), home="d1"), False),
        (record(isr=(1, PRESENT), home="d1"), False),
        (record(isr=(1, 71), home="d1"), True),
    ],
    ids=[
        "the last life that it knows",
        "a later one",
        "a later one that is eligible",
        "of another directory",
        "of another broker",
        "the life that just begins",
        "one of a store that was put back",
    ],
)
def test_an_older_copy_of_a_disk_is_recognised(counted: PartitionRecord, newer: bool) -> None:
    """A directory that lacks an incarnation named in a partition record is recognised as an older copy."""
    assert names_a_newer_incarnation(counted, BrokerId(1), PRESENT, IDENTITY) is newer


def identity(last: int = 40, since: int | None = 20, home: str | None = HERE) -> Identity:
    """Return the identity that the previous incarnation stored."""
    return Identity(
        cluster_id="c",
        broker_id=1,
        directory_id="d",
        last_broker_epoch=last,
        intact_since=since,
        residence=home,
    )


@pytest.mark.parametrize(
    ("left", "was_clean", "here", "since"),
    [
        (identity(), True, HERE, 20),
        (identity(), True, "another boot/volume", 20),
        (identity(), False, HERE, 20),
        (identity(), False, "another boot/volume", None),
        (identity(home=None), False, None, None),
        (identity(home=None), True, None, 20),
        (identity(since=None), True, HERE, 40),
        (identity(last=10, since=700), True, HERE, 10),
        (identity(last=0, since=None, home=None), True, HERE, None),
    ],
    ids=[
        "clean",
        "clean, and the machine has restarted",
        "killed under the same kernel",
        "a loss of power",
        "killed on a system without boot ids",
        "clean on a system without boot ids",
        "of an earlier release",
        "of a store that coordination has left",
        "a new directory",
    ],
)
def test_what_a_restart_has_kept(
    left: Identity, was_clean: bool, here: str | None, since: int | None
) -> None:
    """A broker counts as intact since the first of consecutive restarts without a loss of data."""
    assert kept_since(left, was_clean=was_clean, residence=here) == since


def test_a_residence_is_the_kernel_and_the_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A residence names volume and boot: it is the same for all folders of a volume until the kernel restarts."""
    (tmp_path / "data").mkdir()
    here = residence_of(tmp_path)
    boot = tmp_path / "boot_id"
    boot.write_text("another-boot\n")
    monkeypatch.setattr(directory_trust, "BOOT_ID", boot)

    assert here is not None
    assert residence_of(tmp_path / "data") != here
    assert residence_of(tmp_path / "data") == residence_of(tmp_path)
    monkeypatch.setattr(directory_trust, "BOOT_ID", tmp_path / "missing")
    assert residence_of(tmp_path) is None
