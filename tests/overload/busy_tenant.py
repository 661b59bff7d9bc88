"""A caller that offers the same batch at a given rate, to several brokers in turn and whatever their answers are.

`python busy_tenant.py PARTITIONS VALUE_BYTES URL...` produces to the topic `busy` with the token in the variable
`TOKEN`. Each line of the input is the number of bytes that the program offers per second from then on. When the input
ends, the program prints one JSON object with the size of the batch, the time of each request, the time of each answer
to an admitted batch, and the number of batches that the quota refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack

from broker_kit import Calls
from overload_kit import now, one_batch, pause


class Rate:
    """Bytes to offer per second, as the lines of the input set them."""

    def __init__(self) -> None:
        self.bytes_per_second = 0
        self._changed = asyncio.Event()
        self._is_over = False

    async def follow(self) -> None:
        """Read the input until it ends."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        async for line in reader:
            self.bytes_per_second = int(line)
            self._changed.set()
        self.bytes_per_second, self._is_over = 0, True
        self._changed.set()

    async def until_above_zero(self) -> bool:
        """Wait until there is load to offer; return False after the input has ended."""
        while not self.bytes_per_second and not self._is_over:
            self._changed.clear()
            await self._changed.wait()
        return not self._is_over


async def main(partitions: int, value_bytes: int, urls: list[str]) -> None:
    """Offer the batch at the rate of the input, and print the answers."""
    batch, rate = one_batch(value_bytes, 1), Rate()
    sent, admitted, statuses = list[float](), list[float](), list[int]()

    async def send(through: Calls, partition: int) -> None:
        answer = await through.send("busy", batch, partition)
        statuses.append(answer.status)
        if answer.status == 200:
            admitted.append(now())

    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(Calls(url, token=os.environ["TOKEN"])) for url in urls]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(rate.follow())
            while await rate.until_above_zero():
                due = now()
                while rate.bytes_per_second:
                    number = len(sent)
                    sent.append(now())
                    tasks.create_task(send(brokers[number % len(brokers)], number % partitions))
                    due += len(batch) / rate.bytes_per_second
                    await pause(max(0.0, due - now()))
    counts = {"batch_bytes": len(batch), "sent": sent, "admitted": admitted, "refused": statuses.count(429)}
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    # A caller on another machine would take no processor time from the brokers and from the other caller.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(10)
    numbers, urls = [int(word) for word in sys.argv[1:3]], sys.argv[3:]
    asyncio.run(main(numbers[0], numbers[1], urls))
