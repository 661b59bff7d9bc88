"""The program that prepares and finishes a restore of etcd, and may be run again at each start of the pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead_operator.etcd_restores import main


def step(name: str, volume: Path) -> None:
    """Run a step of the program."""
    assert main([name, f"--volume={volume}"]) == 0


def restore(volume: Path, text: str) -> None:
    """Write the restored data into a folder that must not exist, like etcdutl."""
    (volume / "restored").mkdir()
    (volume / "restored/db").write_text(text)


def test_an_interrupted_restore_begins_again(tmp_path: Path) -> None:
    """The folder of an interrupted restore is removed; the folder of a finished restore becomes etcd's data folder."""
    step("prepare", tmp_path)
    restore(tmp_path, "half")
    step("prepare", tmp_path)
    restore(tmp_path, "whole")
    step("finish", tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data/db").read_text() == "whole"


def test_data_of_a_member_is_never_replaced(tmp_path: Path) -> None:
    """A pod that is created again after etcd has run keeps the data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/db").write_text("newer")
    step("prepare", tmp_path)
    restore(tmp_path, "older")
    step("finish", tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data/db").read_text() == "newer"


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    """A step other than prepare and finish is refused."""
    with pytest.raises(SystemExit):
        main(["restore", f"--volume={tmp_path}"])
