"""The network of the chaos tests finds the process of each relayed connection."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from links import _holds, _inode_of


def test_connections_of_one_local_port_are_distinguished() -> None:
    """A socket is found by its local port and the relay's port, even if the local port has another connection."""
    with ExitStack() as stack:
        relays = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ends = [stack.enter_context(socket.socket()) for _ in relays]
        for end, relay in zip(ends, relays, strict=True):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            end.bind(("127.0.0.1", ends[0].getsockname()[1]))
            end.connect(relay.getsockname())
        port = ends[0].getsockname()[1]
        found = [_inode_of(port, relay.getsockname()[1]) for relay in relays]

        assert found == [str(os.fstat(end.fileno()).st_ino) for end in ends]
        assert found[0] is not None
        assert _holds(os.getpid(), found[0])
        assert not _holds(os.getppid(), found[0])
