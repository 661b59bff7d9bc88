"""Programs that use the SDK exit with their own exit code."""

from __future__ import annotations

import asyncio
import sys

# The last result arrives just before the program ends. If programs did not wait for the threads of the HTTP client when
# they exit, one in three programs would abort.
PROGRAM = """
import asyncio
from fairlead.errors import UnreachableError
from fairlead.settings import ConnectionSettings
from fairlead.connection.transport import Call, Transport

async def main():
    nowhere = ConnectionSettings(bootstrap=("http://127.0.0.1:1",), retry_timeout_seconds=0.01)
    async with Transport(nowhere) as transport:
        try:
            await transport.call(Call(method="GET", path="/", subject="exit"))
        except UnreachableError:
            pass

asyncio.run(main())
"""


async def test_short_programs_end_well() -> None:
    """A short program exits with code 0, because no thread of the HTTP client runs during Python's finalization."""

    async def run() -> int | None:
        """Run the program and return its exit code."""
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM)
        return await process.wait()

    codes: list[int | None] = []
    for _ in range(4):
        codes += await asyncio.gather(run(), run())

    assert codes == [0] * 8
