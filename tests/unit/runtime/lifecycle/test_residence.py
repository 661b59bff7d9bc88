from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_broker.log.documents import Identity
from fairlead_broker.runtime.lifecycle import directory_trust as residence
from fairlead_broker.runtime.lifecycle.directory_trust import kept_since, residence_of

HERE = "boot/volume"


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
        "clean, and the machine started anew",
        "killed under the same kernel",
        "a loss of power",
        "killed where the system tells nothing",
        "clean where the system tells nothing",
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
    monkeypatch.setattr(residence, "BOOT_ID", boot)

    assert here is not None
    assert residence_of(tmp_path / "data") != here
    assert residence_of(tmp_path / "data") == residence_of(tmp_path)
    monkeypatch.setattr(residence, "BOOT_ID", tmp_path / "missing")
    assert residence_of(tmp_path) is None
