"""Files that change on the disk under a real broker: damage is reported, never served, and can be accepted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_kit import Calls
from broker_process import BrokerProcess
from conftest import FaultyBroker
from fairlead import Admin
from fairlead.errors import ConflictError
from fairlead_api.batch.batches import Record, decode_records, encode, record_batch
from fairlead_api.batch.header import iterate_headers
from fairlead_api.problems import ProblemError
from warm_programs import warm_program

RECORDS = 24
SEGMENT_BYTES = 1 << 20
TIME_US = 1_700_000_000_000_000
ACCEPT = "/v1/topics/t/partitions/0:accept-damage"


def value_of(offset: int) -> bytes:
    """Return the value that was stored at an offset."""
    return b"%d " % offset + bytes([65 + offset % 26]) * 200_000


async def store(faulty: FaultyBroker) -> list[Path]:
    """Fill several segments with batches of one record, and stop gracefully; return the segment files."""
    await faulty.calls.create("t", segment_bytes=SEGMENT_BYTES, index_interval_bytes=4096)
    for offset in range(RECORDS):
        data = encode(record_batch([value_of(offset)], default_timestamp_us=TIME_US)).to_bytes()
        assert (await faulty.calls.send("t", data)).status == 200
    await faulty.stop()
    files = sorted(faulty.data.glob("*-*/0/*.log"))
    assert len(files) > 3
    return files


def harm_content(path: Path, number: int) -> int:
    """Flip one bit in a value of a batch, given by its number in a segment; return the offset of the batch."""
    data = bytearray(path.read_bytes())
    position, header = list(iterate_headers(data))[number]
    data[position + header.total_bytes - 500] ^= 4
    path.write_bytes(data)
    return header.base_offset


def harm_header(path: Path, number: int) -> int:
    """Flip one bit in the length of a batch, given by its number in a segment; return the offset of the batch."""
    data = bytearray(path.read_bytes())
    position, header = list(iterate_headers(data))[number]
    data[position + 9] ^= 2
    path.write_bytes(data)
    return header.base_offset


async def served(calls: Calls) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """Read all batches and skip damage; return records by offset, and the damaged ranges.

    The reader checks each batch, so it also finds damage that the broker has not noticed yet.
    """
    records: dict[int, bytes] = {}
    damaged: list[tuple[int, int]] = []
    at = 0
    while at < RECORDS:
        answer = await calls.call(
            "GET",
            f"/v1/topics/t/partitions/0/records?offset={at}&max_bytes=1&max_wait_ms=0",
            headers={"accept": "application/vnd.fairlead.batches"},
        )
        if answer.status != 200:
            assert answer.code == "log_damaged", answer
            told = answer.json
            assert told["first_offset"] <= at < told["next_good_offset"]
            damaged.append((told["first_offset"], told["next_good_offset"]))
            at = told["next_good_offset"]
            continue
        found = checked(answer.body)
        if found is None:
            damaged.append((at, at + 1))
            at += 1
            continue
        records.update({record.offset: record.value or b"" for record in found if record.offset < RECORDS})
        at = int(answer.headers["fairlead-next-offset"])
    return records, damaged


def checked(data: bytes) -> list[Record] | None:
    """Return the records of a batch, or None for a wrong checksum."""
    try:
        return decode_records(data)
    except ProblemError as problem:
        if problem.code != "crc_mismatch":
            raise
        return None


@pytest.mark.slow
@pytest.mark.parametrize("segment", [0, pytest.param(1, marks=pytest.mark.scenario), -1])
async def test_a_flipped_bit_is_refused_scrubbed_and_accepted(faulty: FaultyBroker, segment: int) -> None:
    """A record with a flipped bit is refused by readers, found by the scrub, and can be accepted as lost."""
    files = await store(faulty)
    harmed = harm_content(files[segment], 1)
    await faulty.start()
    records, unbelieved = await served(faulty.calls)
    as_json = await faulty.calls.call("GET", f"/v1/topics/t/partitions/0/records?offset={harmed}")

    assert unbelieved == [(harmed, harmed + 1)]
    assert records == {offset: value_of(offset) for offset in range(RECORDS) if offset != harmed}
    assert (as_json.status, as_json.code) == (500, "log_damaged")

    assert await faulty.broker.broker.scrub.run_pass() == sum(path.stat().st_size for path in files)
    page = (await faulty.ops_page("/metrics"))[1]
    assert 'fairlead_partition_damaged_ranges{partition="0",topic="t"} 1.0' in page
    assert "fairlead_scrub_damaged_ranges_total 1.0" in page
    assert await served(faulty.calls) == (records, [(harmed, harmed + 1)])
    await accept_and_read_on(faulty, records, harmed, harmed + 1)


async def accept_and_read_on(
    faulty: FaultyBroker, records: dict[int, bytes], first: int, following: int
) -> None:
    """Accept the loss of the damaged range, but of no other, and check that reads skip it even after a restart."""
    wrong = await faulty.calls.post(ACCEPT, {"first_offset": first, "next_good_offset": following + 1})
    assert (wrong.status, wrong.code) == (409, "conflict")
    for _ in range(2):
        accepted = await faulty.calls.post(ACCEPT, {"first_offset": first, "next_good_offset": following})
        assert (accepted.status, accepted.json["next_good_offset"]) == (200, following)
    assert await served(faulty.calls) == (records, [])
    await faulty.stop()
    await faulty.start()
    assert await served(faulty.calls) == (records, [])
    page = (await faulty.ops_page("/metrics"))[1]
    assert 'fairlead_partition_damaged_ranges{partition="0",topic="t"} 0.0' in page


async def test_an_acknowledged_end_that_changed_after_a_kill_is_reported(tmp_path: Path) -> None:
    """A bad bit in the last acknowledged batch of a killed broker is damage, and its offset is not assigned again."""
    broker = BrokerProcess(tmp_path / "data")
    batches = [
        encode(record_batch([value_of(offset)], default_timestamp_us=TIME_US)).to_bytes()
        for offset in range(4)
    ]
    try:
        broker.start()
        async with Calls(broker.url) as calls:
            await calls.create("t")
            stored = [(await calls.send("t", batch)).json["base_offset"] for batch in batches[:3]]
        broker.kill()
        [file] = broker.data.glob("*-*/0/*.log")
        harm_content(file, 2)
        broker.start()
        async with Calls(broker.url) as calls:
            refused = await calls.call("GET", "/v1/topics/t/partitions/0/records?offset=2")
            stored.append((await calls.send("t", batches[3])).json["base_offset"])
            last = await calls.call("GET", "/v1/topics/t/partitions/0/records?offset=3&max_wait_ms=0")
    finally:
        broker.kill()

    assert (refused.code, refused.json["first_offset"], refused.json["next_good_offset"]) == (
        "log_damaged", 2, 3,
    )  # fmt: skip
    assert stored == [0, 1, 2, 3]
    assert last.status == 200


async def test_damage_is_accepted_by_the_sdk_and_the_command_line(faulty: FaultyBroker) -> None:
    """The SDK and the command line accept damage for exactly its range, and any other range is a conflict."""
    files = await store(faulty)
    first, second = harm_content(files[0], 1), harm_content(files[1], 1)
    await faulty.start()
    url = f"http://{faulty.broker.addresses.data}"
    async with Admin(url) as admin:
        with pytest.raises(ConflictError):
            await admin.accept_damage("t", 0, first, first + 2)
        for _ in range(2):
            await admin.accept_damage("t", 0, first, first + 1)
    outcomes = [await accept_by_command(url, second, until) for until in (second + 2, second + 1)]

    assert outcomes == [(4, ""), (0, f"readers of t-0 skip from {second} to {second + 1}\n")]
    records, damaged = await served(faulty.calls)
    assert damaged == []
    assert sorted(records) == [offset for offset in range(RECORDS) if offset not in {first, second}]


async def accept_by_command(url: str, first: int, following: int) -> tuple[int | None, str]:
    """Run `fairlead partition accept-damage`; return its exit code and its output."""
    running = await asyncio.create_subprocess_exec(
        warm_program(), "partition", "accept-damage", "t", "0",
        "--first-offset", str(first), "--next-good-offset", str(following), "--bootstrap", url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(60):
        printed, _ = await running.communicate()
    return running.returncode, printed.decode()


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.parametrize("segment", [0, pytest.param(1, marks=pytest.mark.scenario), -1])
async def test_a_header_that_changed_hides_only_its_own_batch(faulty: FaultyBroker, segment: int) -> None:
    """A batch whose length changed is refused by readers, and the broker finds the same damage after their report."""
    files = await store(faulty)
    harmed = harm_header(files[segment], 1)
    await faulty.start()
    records, damaged = await served(faulty.calls)

    assert damaged == [(harmed, harmed + 1)]
    assert records == {offset: value_of(offset) for offset in range(RECORDS) if offset != harmed}
    await accept_and_read_on(faulty, records, harmed, harmed + 1)


@pytest.mark.slow
@pytest.mark.parametrize("segment", [0, pytest.param(1, marks=pytest.mark.scenario), -1])
@pytest.mark.parametrize("kept", [0, 300_000, -1])
async def test_a_file_that_lost_its_end_is_damage_up_to_the_next_segment(
    faulty: FaultyBroker, segment: int, kept: int
) -> None:
    """A segment that is truncated below the recovery point has damaged offsets, which are never assigned again."""
    files = await store(faulty)
    path = files[segment]
    bases = [*(int(each.stem) for each in files), RECORDS]
    base, following = int(path.stem), bases[segment % len(files) + 1]
    headers = list(iterate_headers(path.read_bytes()))
    stop = kept % path.stat().st_size if kept else 0
    whole = sum(position + header.total_bytes <= stop for position, header in headers)
    path.write_bytes(path.read_bytes()[:stop])
    await faulty.start()
    records, damaged = await served(faulty.calls)

    assert damaged == [(base + whole, following)]
    assert sorted(records) == [*range(base + whole), *range(following, RECORDS)]
    assert await faulty.calls.send(
        "t", encode(record_batch([b"on"], default_timestamp_us=TIME_US)).to_bytes()
    )
    assert (await faulty.calls.call("GET", "/v1/topics/t/partitions/0/offsets")).json[
        "log_end_offset"
    ] == RECORDS + 1
    await accept_and_read_on(faulty, records, base + whole, following)


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.parametrize("harm", ["missing", "empty", "garbage", "foreign", "shifted"])
async def test_indexes_are_rebuilt(faulty: FaultyBroker, harm: str) -> None:
    """Index files are rebuilt after any damage, and every record is found by its offset and by its time."""
    files = await store(faulty)
    names = [path for path in files[0].parent.iterdir() if path.suffix in {".index", ".timeindex"}]
    whole = {path: path.read_bytes() for path in names}
    assert len(whole) >= 2 * (len(files) - 1)
    for path, data in whole.items():
        if harm == "missing":
            path.unlink()
        elif harm == "empty":
            path.write_bytes(b"")
        elif harm == "garbage":
            path.write_bytes(bytes(reversed(data)))
        elif harm == "foreign":
            path.write_bytes(next(other for name, other in whole.items() if name.suffix != path.suffix))
        else:
            path.write_bytes(data[:16] + data[32:])
    await faulty.start()
    records, damaged = await served(faulty.calls)

    assert damaged == []
    assert records == {offset: value_of(offset) for offset in range(RECORDS)}
    closed = [path for path in whole if path.stem != files[-1].stem]
    assert {path: path.read_bytes() for path in closed} == {path: whole[path] for path in closed}
