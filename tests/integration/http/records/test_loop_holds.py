"""Large request bodies and answers with records do not block the event loop of a running broker."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest

from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import RECORDS_MAX, Codec

JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENTS = "application/cloudevents-batch+json"
BODY_BYTES = 16 << 20
HOLD_SECONDS_MAX = 0.05
ATTEMPTS = 5
ARROW = "application/vnd.apache.arrow.stream"
BATCHES = "application/vnd.fairlead.batches"
FETCH = "partitions/0/records?offset=0"
TAIL = "records?from=earliest&max_records=1"
LISTS = b"[" + b"[]," * ((4 << 20) // 3) + b"1]"
EVENT = '"specversion":"1.0","id":"%d","source":"s","type":"t"'


def array(record: str, count: int) -> bytes:
    """Return a body of at most 16 MiB with records; in the text of a record, `%d` stands for its number."""
    records: list[str] = []
    size = 2
    for number in range(count):
        text = record % number if "%d" in record else record
        size += len(text) + 1
        if size > BODY_BYTES:
            break
        records.append(text)
    return f"[{','.join(records)}]".encode()


def nested(value: str) -> str:
    """Return a record whose value is a list of 400 KB, with the same element many times."""
    return f'{{"value":[{",".join([value] * (400_000 // (len(value) + 1)))}]}}'


BODIES: dict[str, tuple[str, str, Callable[[], bytes]]] = {
    "plain": (
        JSON,
        "records",
        lambda: array('{"key":"key-%d","value":"a record of a hundred bytes' + 60 * "." + '"}', 200_000),
    ),
    "tiny": (JSON, "records", lambda: array('{"value":"x"}', 500_000)),
    "keys": (JSON, "records", lambda: array('{"key":"%d","value":"x"}', 500_000)),
    "escapes": (JSON, "records", lambda: array('{"value":"' + '\\"' * 40 + '"}', 200_000)),
    "one-text": (JSON, "records", lambda: array('{"value":"' + "\\u20ac" * 340_000 + '"}', 8)),
    "headers": (JSON, "records", lambda: array('{"value":"x","headers":[["a","b"],["c","d"]]}', 130_000)),
    "numbers": (JSON, "records?encoding=json", lambda: array(nested("5e-324"), 40)),
    "lists": (
        JSON,
        "records?encoding=json",
        lambda: array('{"value":[' + ",".join(["[]"] * 20) + "]}", 20_000),
    ),
    "refused": (JSON, "records", lambda: array('{"value":"x"}', 500_000)[:-1] + b",5]"),
    "field": (JSON, "records", lambda: b'{"other":' + array(nested("5e-324"), 40) + b"}"),
    "lines": (NDJSON, "records", lambda: array('{"value":"x"}', 500_000)[1:-1].replace(b",", b"\n")),
    "empty-lines": (NDJSON, "records", lambda: b'{"value":"x"}' + b"\n" * (8 << 20)),
    "events": (EVENTS, "records", lambda: array(f'{{{EVENT},"data":{{"a":[1,2.5]}}}}', 100_000)),
}
"""Media type, path and body of each call; the test creates the body, because creating it takes a tenth of a second."""


BUSY = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: os.sched_yield()"


@pytest.fixture(scope="module", autouse=True)
def awake_processors() -> Iterator[None]:
    """Keep every processor busy at idle priority: a sleeping virtual processor may be woken 0.1 s late."""
    programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    yield
    for program in programs:
        program.kill()
        program.wait()


async def longest_hold(work: asyncio.Task) -> float:
    """Return the longest time for which the loop did not run a timer of a millisecond during the work.

    Time during which this process had no processor is not counted.
    """
    longest, before = 0.0, (time.perf_counter(), time.process_time())
    while not work.done():
        await asyncio.sleep(0.001)  # noqa: TID251 - the test measures the timer
        now = (time.perf_counter(), time.process_time())
        longest, before = max(longest, min(now[0] - before[0], now[1] - before[1])), now
    return longest


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("keys", "numbers") else pytest.param(name, marks=pytest.mark.scenario)
        for name in BODIES
    ],
)
async def test_a_large_body_does_not_stop_the_loop(api, name: str) -> None:
    """A JSON or NDJSON body of 16 MiB, valid or not, blocks the loop for at most 50 ms in the best attempt."""
    media_type, path, make_body = BODIES[name]
    body = make_body()
    await api.create("flights", 100)
    call = partial(api.call, "POST", f"/v1/topics/flights/{path}", body, {"content-type": media_type})

    assert await best_hold(call) <= HOLD_SECONDS_MAX


ANSWERS: dict[str, tuple[str, str, Callable[[], list[bytes]]]] = {
    "lists": (JSON, f"{FETCH}&encoding=json", lambda: [LISTS]),
    "text": (JSON, FETCH, lambda: ["a\u20ac\n".encode() * (3 << 20)]),
    "escapes": (JSON, FETCH, lambda: [b"\x01" * (16 << 20)]),
    "bytes": (JSON, f"{FETCH}&encoding=base64", lambda: [b"\xff" * (11 << 20)]),
    "many": (JSON, FETCH, lambda: [b""] * RECORDS_MAX),
    "arrow": (ARROW, FETCH, lambda: [b""] * RECORDS_MAX),
    "tail": (NDJSON, f"{TAIL}&encoding=json", lambda: [LISTS]),
    "events": ("text/event-stream", TAIL, lambda: ["a\u20ac\n".encode() * (3 << 20)]),
}
"""Media type and path of each call, and the values of the batch that it reads."""


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("lists", "tail") else pytest.param(name, marks=pytest.mark.scenario)
        for name in ANSWERS
    ],
)
async def test_a_large_answer_does_not_stop_the_loop(api, name: str) -> None:
    """An answer with a batch that decompresses to 16 MiB or a million records blocks the loop for at most 50 ms."""
    media_type, path, make_values = ANSWERS[name]
    batch = encode(record_batch(make_values(), default_timestamp_us=0), Codec.ZSTD).to_bytes()
    await api.create("flights", 1)
    stored = await api.call(
        "POST", "/v1/topics/flights/partitions/0/records", batch, {"content-type": BATCHES}
    )
    assert stored.status == 200
    call = partial(api.call, "GET", f"/v1/topics/flights/{path}", None, {"accept": media_type})

    assert await best_hold(call) <= HOLD_SECONDS_MAX


async def best_hold(call: Callable[[], Awaitable[object]]) -> float:
    """Return the longest time for which a call blocks the event loop, in the best of several attempts."""
    best = 1000.0
    for _ in range(ATTEMPTS):
        work = asyncio.ensure_future(call())
        best = min(best, await longest_hold(work))
        await work
        if best <= HOLD_SECONDS_MAX:
            break
    return best
