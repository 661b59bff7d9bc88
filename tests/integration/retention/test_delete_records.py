"""Deleting records up to an offset: over HTTP, by the SDK, on the command line, and despite a kill."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import Admin, Producer
from fairlead.errors import OffsetOutOfRangeError
from warm_programs import warm_program

PATH = "/v1/topics/flights/partitions/0:delete-records"


@pytest.fixture
async def api(api):
    """Return a broker with a thousand records in ten batches."""
    await api.admin.create_topic("flights")
    for number in range(10):
        await api.produce("flights", *(str(100 * number + each) for each in range(100)))
    return api


async def test_up_to_an_offset_inside_a_batch(api, lives) -> None:
    """Records before offset 550, inside a batch, are deleted, even after a restart."""
    answer = await api.call("POST", PATH, {"offset": 550})
    expired = await api.fetch("flights", 549)
    first = (await api.fetch("flights", "earliest")).json["records"][0]
    await api.running.stop()
    api = await lives.start()

    assert (answer.status, answer.json["low_watermark"]) == (200, 550)
    assert (expired.status, expired.json["code"], expired.json["log_start_offset"]) == (
        410,
        "offset_expired",
        550,
    )
    assert (first["offset"], first["value"]) == (550, "550")
    assert await api.start_and_end("flights") == (550, 1000)
    assert await api.offsets_read("flights") == list(range(550, 1000))


async def test_minus_one_is_the_high_watermark(api) -> None:
    """Offset -1 deletes all records below the high watermark, and the next record gets the end offset."""
    answer = await api.call("POST", PATH, {"offset": -1})
    produced = await api.produce("flights", "a")

    assert answer.json["low_watermark"] == 1000
    assert produced.json["base_offset"] == 1000
    assert await api.offsets_read("flights") == [1000]


async def test_above_the_high_watermark_nothing_is_deleted(api) -> None:
    """Records above the high watermark are not deleted, and the refusal names both ends of the log."""
    answer = await api.call("POST", PATH, {"offset": 1001})

    assert (answer.status, answer.json["code"]) == (416, "offset_out_of_range")
    assert (answer.json["log_start_offset"], answer.json["high_watermark"]) == (0, 1000)
    assert await api.start_and_end("flights") == (0, 1000)


async def test_a_start_never_goes_back(api) -> None:
    """A deletion below the log start offset changes nothing and is answered with the log start offset."""
    answers = [(await api.call("POST", PATH, {"offset": offset})).json for offset in (500, 500, 100, 0)]

    assert [answer["low_watermark"] for answer in answers] == [500] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (PATH, {"offset": -2}, 400, "malformed_request"),
        (PATH, {}, 400, "malformed_request"),
        (PATH, {"offset": "5"}, 400, "malformed_request"),
        (PATH, {"offset": 5, "colour": "red"}, 422, "unknown_option"),
        (PATH.replace("/0:", "/7:"), {"offset": 5}, 404, "partition_not_found"),
        (PATH.replace("flights", "ghost"), {"offset": 5}, 404, "topic_not_found"),
        (PATH.replace(":delete-records", ":undelete-records"), {"offset": 5}, 404, "route_not_found"),
    ],
)
async def test_wrong_calls(api, path: str, body: object, status: int, code: str) -> None:
    """An invalid deletion is refused with its problem, and no record is deleted."""
    answer = await api.call("POST", path, body)

    assert (answer.status, answer.json["code"]) == (status, code)
    assert (await api.start_and_end("flights"))[0] == 0


async def test_segments_below_the_start_lose_their_files_after_the_delay(api, lives, clock) -> None:
    """The files of segments below the log start are deleted after the delay, and the active segment remains."""
    topic = await api.admin.alter_topic("flights", config={"segment.ms": 1000, "retention.ms": -1})
    clock.move(2)
    await api.looks()
    await api.call("POST", PATH, {"offset": -1})
    clock.move(61)
    await api.looks()

    assert [int(path.stem) for path in lives.segments(topic.topic_id)] == [1000]


async def test_the_sdk_deletes_and_refuses_alike(api) -> None:
    """The SDK deletes records, or all records with `before` None; an offset that is too high raises a typed error."""
    low_watermark = await api.admin.delete_records("flights", 0, before=300)
    with pytest.raises(OffsetOutOfRangeError):
        await api.admin.delete_records("flights", 0, before=2000)

    assert low_watermark == 300
    assert await api.admin.delete_records("flights", 0) == 1000


async def test_the_command_line_trims(api) -> None:
    """Records are deleted by `topic trim`, which prints the new start and exits with 4 when it is refused."""
    trimmed = await fairlead(api, "topic", "trim", "flights", "--partition", "0", "--before", "500")
    refused = await fairlead(api, "topic", "trim", "flights", "--partition", "0", "--before", "5000")

    assert trimmed == (0, "flights-0 begins at offset 500\n")
    assert refused == (4, "")
    assert (await api.start_and_end("flights"))[0] == 500


@pytest.mark.scenario
@pytest.mark.slow
async def test_a_deletion_survives_a_kill(process) -> None:
    """An acknowledged deletion survives an immediate kill of the broker, with either durability."""
    async with Admin(process.address) as admin, Producer(process.address) as producer:
        for name, durability in (("synced", "synced"), ("replicated", "replicated")):
            await admin.create_topic(name, config={"durability": durability})
            for value in range(100):
                await producer.send(name, str(value).encode())
            await producer.flush()
            assert await admin.delete_records(name, 0, before=50) == 50
    process.kill()
    await process.start()
    async with Admin(process.address) as admin:
        found = {name: await admin.offsets(name, 0) for name in ("synced", "replicated")}

    assert {name: (each.log_start_offset, each.high_watermark) for name, each in found.items()} == {
        "synced": (50, 100),
        "replicated": (50, 100),
    }


async def fairlead(api, *arguments: str) -> tuple[int | None, str]:
    """Run the program against the broker; return its exit code and output."""
    running = await asyncio.create_subprocess_exec(
        warm_program(), *arguments, "--bootstrap", api.url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(30):
        printed, _ = await running.communicate()
    return running.returncode, printed.decode()
