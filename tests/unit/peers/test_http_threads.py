"""Programs that have called other brokers end with their own exit code."""

import asyncio
import sys

# The last result arrives just before the program ends. If programs did not wait for the threads of the HTTP client at
# their exit, one in three would abort.
PROGRAM = """
import asyncio
from types import SimpleNamespace
from fairlead_broker.clock import SystemClock
from fairlead_broker.peers.identity import PeerIdentity
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.records import BrokerState

async def main():
    addresses = SimpleNamespace(peer="127.0.0.1:1", peer_scheme="http")
    registration = SimpleNamespace(addresses=addresses, state=BrokerState.RUNNING, peer_key=None)
    nowhere = SimpleNamespace(value=registration)
    own = PeerIdentity("cluster", 1, "secret", lambda: 1, lambda: 1)
    peers = Peers(own, lambda: {2: nowhere}, SystemClock())
    try:
        await peers.log_ends(2, ())
    except PeerUnavailable:
        pass
    await peers.close()

asyncio.run(main())
"""


async def test_short_programs_end_well() -> None:
    """Short programs exit with code 0, because no thread of the HTTP client runs during Python's finalization."""

    async def run() -> int | None:
        """Run the program and return its exit code."""
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM)
        return await process.wait()

    codes: list[int | None] = []
    for _ in range(3):
        codes += await asyncio.gather(run(), run())

    assert codes == [0] * 6
