"""Copies of checked TLS material, which HTTP servers read (rule T6)."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

from certificate_kit import Authority
from fairlead_broker.certificates.material import Side, read_material
from fairlead_broker.certificates.snapshots import PREFIX, Snapshot, remove_left_over
from fairlead_broker.clock import SystemClock


def mode_of(path: Path) -> int:
    """Return the permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_copy_belongs_to_the_user_of_the_broker(tmp_path: Path) -> None:
    """A copy has the checked bytes, in a folder and files that no other user may access, until it is removed."""
    authority = Authority.make()
    folder = authority.issue().write(tmp_path, authority)
    material = read_material(folder, Side.PEER, hosts=("localhost",), now_us=SystemClock().now_us())
    copy = Snapshot.write(material)
    try:
        assert copy.client_ca is not None
        files = [copy.chain, copy.key, copy.client_ca]
        contents, modes = [file.read_bytes() for file in files], {mode_of(file) for file in files}
        folder_mode, names = mode_of(copy.folder), {file.name for file in copy.folder.iterdir()}
    finally:
        copy.remove()

    assert contents == [material.chain_pem, material.key_pem, material.client_ca_pem]
    assert (folder_mode, modes) == (0o700, {0o600})
    assert names == {file.name for file in files}
    assert not copy.folder.exists()


def test_a_copy_without_authorities_of_clients_names_none(tmp_path: Path) -> None:
    """Without authorities of clients, a copy has no file of authorities, so that a server requests no certificate."""
    authority = Authority.make()
    folder = authority.issue().write(tmp_path, authority)
    material = read_material(folder, Side.DATA, hosts=("localhost",), now_us=SystemClock().now_us())
    copy = Snapshot.write(material)
    try:
        names = {file.name for file in copy.folder.iterdir()}
    finally:
        copy.remove()

    assert (material.client_ca_pem, copy.client_ca) == (None, None)
    assert names == {copy.chain.name, copy.key.name}


def test_copies_of_ended_processes_are_removed(tmp_path: Path) -> None:
    """The copies of processes that have ended are removed; copies of running processes and other folders stay."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, own, other = (
        tmp_path / name for name in (f"{PREFIX}{ended.pid}-x", f"{PREFIX}{os.getpid()}-x", "other")
    )
    for folder in (left, own, other):
        folder.mkdir()
    remove_left_over(tmp_path)

    assert set(tmp_path.iterdir()) == {own, other}
