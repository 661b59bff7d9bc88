"""Small requests, in short turns in the modes `open` and `enforce`, in a separate process.

Two modes whose costs differ by a few percent are compared turn by turn in the same broker, because other work on the
machine changes the speed by more than that within seconds, and no two processes are equally fast. With `--tls-url`, the
requests in `enforce` use the broker's listener with TLS. With `--reads`, each request reads the records of one batch;
with `--heartbeats`, each request is a heartbeat of a member, which changes nothing. The program prints a JSON object
with the requests per second of each turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from http_workload import MEMBER, answered, heartbeat_at_rest
from pyreqwest.client import Client, ClientBuilder
from security_mode import change

from fairlead import Admin

AT_ONCE = 16


async def turn(call: Callable[[], Awaitable[bytes]], requests: int) -> float:
    """Make the requests of a turn, several at a time, and return their number per second."""
    numbers = iter(range(requests))

    async def worker() -> None:
        for _ in numbers:
            await call()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return requests / (time.perf_counter() - began)


def client_of(token: str | None, ca: str | None) -> Client:
    """Return a client with a token, and with TLS if `ca` is a file with authorities."""
    builder = ClientBuilder().no_proxy().tcp_nodelay(True)
    builder = (
        builder.http2_prior_knowledge()
        if ca is None
        else builder.add_root_certificate_pem(Path(ca).read_bytes())
    )
    return builder.default_headers({} if token is None else {"authorization": f"Bearer {token}"}).build()


async def work(options: argparse.Namespace, token: str) -> dict[str, list[float]]:
    """Return the requests per second of each turn in each mode."""
    tls_url = options.tls_url
    clients = {"open": client_of(None, None), "enforce": client_of(token, options.ca if tls_url else None)}
    urls = {"open": options.url, "enforce": tls_url or options.url}
    body = json.dumps({"records": [{"value": "v" * options.value_bytes}] * options.records}).encode()
    topic = f"/v1/topics/{options.topic}"

    def call_in(mode: str) -> Callable[[], Awaitable[bytes]]:
        client, url = clients[mode], urls[mode] + topic
        if options.reads:
            read = f"{url}/partitions/0/records?max_bytes=1"
            return lambda: answered(client.get(read).header("accept", "application/json"))
        if options.heartbeats:
            return lambda: answered(client.put(members[mode]), at_rest[mode])
        return lambda: answered(client.post(f"{url}/records?acks=all"), body)

    # A member belongs to its caller, so each mode has a group of its own.
    members = {mode: urls[mode] + MEMBER.format(group=f"{options.topic}-{mode}") for mode in clients}
    at_rest: dict[str, bytes] = {}
    rates: dict[str, list[float]] = {mode: [] for mode in clients}
    async with Admin(options.url, token_file=options.admin_token_file) as admin:
        if options.reads:
            await answered(clients["enforce"].post(f"{urls['enforce']}{topic}/partitions/0/records"), body)
        for number in range(options.turns + 1):
            for mode in ("open", "enforce") if number % 2 else ("enforce", "open"):
                await change(admin, mode)
                if options.heartbeats and mode not in at_rest:
                    at_rest[mode] = await heartbeat_at_rest(clients[mode], members[mode], options.topic)
                rates[mode].append(await turn(call_in(mode), options.requests))
        await change(admin, "enforce")
    return {mode: measured[1:] for mode, measured in rates.items()}


def main() -> None:
    """Parse the command line, send the requests and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--token-file", required=True, help="token of the requests in `enforce`")
    parser.add_argument("--admin-token-file", required=True, help="token that may change the mode")
    parser.add_argument("--tls-url", help="listener with TLS for the requests in `enforce`")
    parser.add_argument("--ca", help="authorities of the listener with TLS")
    parser.add_argument(
        "--reads", action="store_true", help="read the records of a batch instead of producing"
    )
    parser.add_argument("--heartbeats", action="store_true", help="send heartbeats instead of producing")
    parser.add_argument("--records", type=int, default=1, help="number of records of a request")
    parser.add_argument("--value-bytes", type=int, default=100, help="length of the value of a record")
    parser.add_argument("--turns", type=int, default=100, help="number of turns in each mode")
    parser.add_argument("--requests", type=int, default=500, help="number of requests in a turn")
    options = parser.parse_args()
    token = Path(options.token_file).read_text(encoding="ascii").strip()
    print(json.dumps(uvloop.run(work(options, token))))


if __name__ == "__main__":
    main()
