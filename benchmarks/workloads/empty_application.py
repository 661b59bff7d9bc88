"""HTTP server with an application that only reads each body and sends a constant answer, on the broker's listener.

`footprint.py` starts the program in a separate process: its processor time per request is the part of a broker's that
no change of the broker's own code can save. The program prints its URL when it serves.
"""

from __future__ import annotations

import asyncio
import signal

import uvloop

from fairlead_broker.server.connections.bound_socket import BoundSocket
from fairlead_broker.server.http.asgi import Receive, Scope, Send
from fairlead_broker.server.http.http2_listener import Http2Listener

ANSWER = (
    b'{"topic":"http-replicated-1-0","topic_id":"AAAAAAAAAAAAAAAAAAAAAA","results":[{"partition":0,"base_offset":1,'
    b'"last_offset":1,"log_append_time":"2026-01-01T00:00:00.000000Z","leader_epoch":1,"duplicate":false}]}'
)
"""Answer as long as that of a produce call."""
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def application(_: Scope, receive: Receive, send: Send) -> None:
    """Read the body to its end, and send the answer."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def serve() -> None:
    """Serve until the program is terminated."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    bound = BoundSocket("empty", "127.0.0.1", 0)
    listener = Http2Listener(application, bound, connections_max=100)
    await listener.start()
    print(f"http://{bound}", flush=True)
    await terminated.wait()
    await listener.stop(timeout_seconds=1)


if __name__ == "__main__":
    uvloop.run(serve())
