"""A caller that offers the same batch at a fixed rate, to several brokers in turn and whatever their answers are.

`python busy_tenant.py PARTITIONS VALUE_BYTES BYTES_PER_SECOND URL...` produces to the topic `busy` with the token in
the variable `TOKEN`, until its input ends. The program then prints one JSON object with the size of the batch, the
bytes that it offered in a second, the time of each answer to an admitted batch, and the number of batches that the
quota refused.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from contextlib import AsyncExitStack

from broker_kit import Calls
from overload_kit import now, one_batch, pause


async def main(partitions: int, value_bytes: int, bytes_per_second: int, urls: list[str]) -> None:
    """Offer the batch until the input ends, and print the answers."""
    batch, admitted, statuses = one_batch(value_bytes, 1), list[float](), list[int]()
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    async def send(through: Calls, partition: int) -> None:
        answer = await through.send("busy", batch, partition)
        statuses.append(answer.status)
        if answer.status == 200:
            admitted.append(now())

    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(Calls(url, token=os.environ["TOKEN"])) for url in urls]
        begun, offered = now(), 0.0
        async with asyncio.TaskGroup() as tasks:
            for number in itertools.count():
                if over.done():
                    offered = number * len(batch) / (now() - begun)
                    break
                tasks.create_task(send(brokers[number % len(brokers)], number % partitions))
                await pause(max(0.0, begun + (number + 1) * len(batch) / bytes_per_second - now()))
    counts = {"batch_bytes": len(batch), "offered_bytes_per_second": round(offered)}
    sys.stdout.write(json.dumps(counts | {"admitted": admitted, "refused": statuses.count(429)}))


if __name__ == "__main__":
    numbers, urls = [int(word) for word in sys.argv[1:4]], sys.argv[4:]
    asyncio.run(main(numbers[0], numbers[1], numbers[2], urls))
