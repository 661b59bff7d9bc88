"""Output of a broker that ends because of an error."""

from __future__ import annotations

import sys
from pathlib import Path

from broker_process import BrokerProcess

PROGRAM = """
import sys
from fairlead.cli.main import main
from fairlead_broker.runtime.groups.upkeep import GroupUpkeep

async def look_at_a_folder_that_has_gone(self):
    list(__import__("pathlib").Path("/folder/that/has/gone").iterdir())

GroupUpkeep.look_at_all = look_at_a_folder_that_has_gone
del sys.argv[0]
main()
"""


def test_a_fatal_error_names_path_call_and_stack(tmp_path: Path) -> None:
    """A broker that exits because of an unexpected error logs the path, the failed call and the stack of the error."""
    broker = BrokerProcess(tmp_path / "data", prefix=(sys.executable, "-c", PROGRAM))
    try:
        broker.start()
        assert broker._process is not None
        code = broker._process.wait(20)
    finally:
        broker.kill()
    written = (tmp_path / "data.log").read_text()

    assert code == 1
    assert "/folder/that/has/gone" in written
    assert "in look_at_a_folder_that_has_gone" in written
    assert "groups/upkeep.py" in written
    assert "the broker failed: FileNotFoundError" in written
