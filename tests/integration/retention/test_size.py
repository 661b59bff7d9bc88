"""Retention by size on a running broker, and the deletion of its files."""

from __future__ import annotations

import pytest

MIB = 1 << 20
BATCH_VALUES = ["x" * 1000] * 250
"""Values of one batch, about a quarter of a MiB in total."""


async def fill(api, topic: str, mebibytes: int) -> None:
    """Produce `mebibytes` MiB in batches of a quarter of a MiB."""
    for _ in range(4 * mebibytes):
        answer = await api.produce(topic, *BATCH_VALUES)
        assert answer.status == 200, answer


@pytest.mark.parametrize("mode", ["isr", "quorum"])
async def test_the_size_stays_above_the_limit_by_less_than_a_segment(api, lives, mode) -> None:
    """A log of 10 MiB with a limit of 3 MiB and segments of 1 MiB keeps 3 to 4 MiB and the active segment."""
    config = {"segment.bytes": MIB, "retention.bytes": 3 * MIB, "retention.ms": -1, "file.delete.delay.ms": 0}
    config["replication.mode"] = mode
    topic = await api.admin.create_topic("flights", config=config)
    await fill(api, "flights", 10)

    async def settled() -> bool:
        sizes = [path.stat().st_size for path in lives.segments(topic.topic_id)]
        return sum(sizes) <= 4 * MIB + sizes[-1]

    async def follows() -> bool:
        """Return whether the files before the log start are deleted."""
        start, _ = await api.start_and_end("flights")
        return int(lives.segments(topic.topic_id)[0].stem) == start

    await api.until(settled)
    await api.looks()
    await api.until(follows)
    sizes = [path.stat().st_size for path in lives.segments(topic.topic_id)]
    start, end = await api.start_and_end("flights")

    assert 3 * MIB <= sum(sizes) <= 4 * MIB + sizes[-1]
    assert start > 0
    assert int(lives.segments(topic.topic_id)[0].stem) == start
    assert await api.offsets_read("flights") == list(range(start, end))
    assert (await api.fetch("flights", start - 1)).json["log_start_offset"] == start


async def test_files_stay_for_their_readers_and_are_deleted_after_the_delay(api, lives, clock) -> None:
    """Reads below the log start are refused at once, and the files are deleted after file.delete.delay.ms."""
    config = {
        "segment.bytes": MIB,
        "retention.bytes": MIB,
        "retention.ms": -1,
        "file.delete.delay.ms": 600_000,
    }
    topic = await api.admin.create_topic("flights", config=config)
    await fill(api, "flights", 3)

    async def moved() -> bool:
        return (await api.start_and_end("flights"))[0] > 0

    await api.until(moved)
    await api.looks()
    start = (await api.start_and_end("flights"))[0]
    clock.move(300)
    await api.looks()
    within = [int(path.stem) for path in lives.segments(topic.topic_id)]
    clock.move(301)
    await api.looks()
    after = lives.segments(topic.topic_id)
    names = {path.name for path in after[0].parent.iterdir()}

    assert within[0] == 0 < start
    assert int(after[0].stem) == start
    assert not {name for name in names if name.startswith(f"{0:020d}")}


async def test_a_restart_finishes_a_delayed_deletion(api, lives) -> None:
    """Files below the log start are removed by a restart, and no records are served from them."""
    config = {"segment.bytes": MIB, "retention.bytes": MIB, "retention.ms": -1}
    topic = await api.admin.create_topic("flights", config=config)
    await fill(api, "flights", 3)
    await api.looks()
    before = await api.start_and_end("flights")
    await api.running.stop()
    stopped = [int(path.stem) for path in lives.segments(topic.topic_id)]
    api = await lives.start()

    assert stopped[0] == 0 < before[0]
    assert await api.start_and_end("flights") == before
    assert int(lives.segments(topic.topic_id)[0].stem) == before[0]
