"""The front door of a box: the API server on one port of 127.0.0.1, inside the box and on the machine.

The front door is a process in the box. The machine's listening socket is opened outside and passed in, because a
connection belongs to the network in which its listener was opened. One kubeconfig therefore serves kubectl, tests and
operators inside and outside the box. With `--until-unused`, the front door ends the box when its last user has ended in
any way: every user has a shared lock on the file `users`, which the kernel releases.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import socket
import threading
from pathlib import Path

CHUNK = 65536


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction until it ends, and forward its end; a reset is forwarded as a reset."""
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


class Relay:
    """Forwards connections byte for byte."""

    def __init__(self, host: str, port: int) -> None:
        """Forward connections to `host` and `port`."""
        self._host, self._port = host, port

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until both sides have ended it, or refuse it when the target refuses."""
        try:
            there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))
        finally:
            there_writer.transport.abort()
            writer.transport.abort()


def end_when_unused(users: Path) -> None:
    """Wait until no process shares the lock of the users, and end process 1 of the box."""
    with users.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.kill(1, signal.SIGTERM)
        # The lock is kept until the kernel ends this process, so that no process joins a box that is shutting down.
        threading.Event().wait()


async def serve(listener: int, host: str, port: int) -> None:
    """Serve both listeners until the box ends."""
    relay = Relay(host, port)
    outside = socket.socket(fileno=listener)
    own_port = outside.getsockname()[1]
    servers = [
        await asyncio.start_server(relay.accept, sock=outside),
        await asyncio.start_server(relay.accept, "127.0.0.1", own_port),
    ]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Serve until the box ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the machine's socket")
    parser.add_argument("--server", required=True, help="host:port of the API server in the box")
    parser.add_argument("--until-unused", type=Path, help="the file that users hold shared locks on")
    arguments = parser.parse_args()
    if arguments.until_unused:
        watcher = threading.Thread(target=end_when_unused, args=(arguments.until_unused,), daemon=True)
        watcher.start()
    host, port = arguments.server.split(":")
    asyncio.run(serve(arguments.listener, host, int(port)))


if __name__ == "__main__":
    main()
