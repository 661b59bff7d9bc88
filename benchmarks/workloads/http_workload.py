"""Work with JSON over plain HTTP in a separate process: requests with a few records each, several at a time.

The program prints one JSON object. `footprint.py` starts the program, which does not use the SDK. With `--heartbeats`,
the requests are heartbeats of a member instead, after the member has confirmed its partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import pyreqwest.client
import pyreqwest.request
import uvloop

DISTINCT_BODIES = 50
MEMBER = "/v1/groups/{group}/members/one"


async def work(options: argparse.Namespace, token: str | None) -> dict[str, float]:
    """Send the requests and return the measurements."""
    builder = pyreqwest.client.ClientBuilder().http2_prior_knowledge().no_proxy().tcp_nodelay(True)
    if token is not None:
        builder = builder.default_headers({"authorization": f"Bearer {token}"})
    async with builder.build() as client:
        if options.heartbeats:
            path = options.url + MEMBER.format(group="heartbeats")
            bodies = [await heartbeat_at_rest(client, path, options.topic)]
            build = client.put
        else:
            bodies = [
                json.dumps(
                    {"records": [{"value": f"{number:08}" * 13} for _ in range(options.batch)]}
                ).encode()
                for number in range(DISTINCT_BODIES)
            ]
            build, path = client.post, f"{options.url}/v1/topics/{options.topic}/records?acks=all"
        requests = iter(range(options.requests))

        async def worker() -> None:
            for number in requests:
                await answered(build(path), bodies[number % len(bodies)])

        began, cpu_began = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(options.at_once):
                group.create_task(worker())
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    records = options.requests * options.batch
    return {
        "records": records,
        "seconds": seconds,
        "records_per_second": records / seconds,
        "requests_per_second": options.requests / seconds,
        "client_cpu_us_per_record": cpu / records * 1e6,
    }


async def answered(request: pyreqwest.request.RequestBuilder, body: bytes | None = None) -> bytes:
    """Send a request, with a JSON body unless `body` is None; return the body of its answer, which must be 200."""
    if body is not None:
        request = request.body_bytes(body).header("content-type", "application/json")
    response = await request.build().send()
    answer = bytes(await response.bytes())
    assert response.status == 200, (response.status, answer[:500])
    return answer


async def heartbeat_at_rest(client: pyreqwest.client.Client, member: str, topic: str) -> bytes:
    """Return the body of a heartbeat that changes nothing, after joining a group unless `topic` is empty."""
    body: dict[str, object] = {"member_epoch": 0, "topics": [topic]}
    while topic and "owned" not in body:
        answer = json.loads(await answered(client.put(member), json.dumps(body).encode()))
        body = {"member_epoch": answer["member_epoch"]}
        if answer["assignment"]:
            body["owned"] = [
                {"topic_id": each["topic_id"], "partitions": each["partitions"]}
                for each in answer["assignment"]
            ]
            await answered(client.put(member), json.dumps(body).encode())
    return json.dumps({"member_epoch": body["member_epoch"]}).encode()


def main() -> None:
    """Parse the command line, send the requests and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1, help="number of records in a request")
    parser.add_argument("--heartbeats", action="store_true", help="send heartbeats of a member of the topic")
    parser.add_argument("--at-once", type=int, default=16, help="number of concurrent requests")
    parser.add_argument("--token-file", help="file with the token of the requests")
    options = parser.parse_args()
    token = None if options.token_file is None else Path(options.token_file).read_text().strip()
    print(json.dumps(uvloop.run(work(options, token))))


if __name__ == "__main__":
    main()
