"""Work with JSON over plain HTTP in a separate process: requests with a few records each, several at a time.

The program prints one JSON object. `footprint.py` starts the program, which does not use the SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import pyreqwest.client
import uvloop

DISTINCT_BODIES = 50


async def produce(options: argparse.Namespace, token: str | None) -> dict[str, float]:
    """Post bodies with JSON records; every answer must be 200 with a result for each record."""
    path = f"{options.url}/v1/topics/{options.topic}/records?acks=all"
    bodies = [
        json.dumps({"records": [{"value": f"{number:08}" * 13} for _ in range(options.batch)]}).encode()
        for number in range(DISTINCT_BODIES)
    ]
    requests = iter(range(options.requests))
    builder = pyreqwest.client.ClientBuilder().http2_prior_knowledge().no_proxy().tcp_nodelay(True)
    if token is not None:
        builder = builder.default_headers({"authorization": f"Bearer {token}"})
    async with builder.build() as client:

        async def worker() -> None:
            for number in requests:
                request = client.post(path).body_bytes(bodies[number % DISTINCT_BODIES])
                response = await request.header("content-type", "application/json").build().send()
                answer = await response.bytes()
                assert response.status == 200, (response.status, bytes(answer)[:500])

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


def main() -> None:
    """Parse the command line, post the records and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="number of records in a request")
    parser.add_argument("--at-once", type=int, default=16, help="number of concurrent requests")
    parser.add_argument("--token-file", help="file with the token of the requests")
    options = parser.parse_args()
    token = None if options.token_file is None else Path(options.token_file).read_text().strip()
    print(json.dumps(uvloop.run(produce(options, token))))


if __name__ == "__main__":
    main()
