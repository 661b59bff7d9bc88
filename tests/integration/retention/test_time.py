"""Retention by time on a running broker: expired records, kept records, and errors of consumers."""

from __future__ import annotations

import pytest

SECOND_MS = 1000
DAY_SECONDS = 24 * 3600


async def test_old_records_are_deleted_whether_read_or_not(api, clock) -> None:
    """Old records are deleted, whether read or not, and all records from the first recent segment on are kept."""
    await api.admin.create_topic("flights", config={"retention.ms": 2_000_000, "segment.ms": 1_000_000})
    await api.produce("flights", *"0123456789")
    clock.move(1500)
    await api.produce("flights", *"0123456789")
    clock.move(1500)
    await api.begins_at("flights", 10)
    expired = await api.fetch("flights", 5)

    assert await api.offsets_read("flights") == list(range(10, 20))
    assert (expired.status, expired.json["code"], expired.json["log_start_offset"]) == (
        410,
        "offset_expired",
        10,
    )
    assert (await api.admin.offsets("flights", 0)).high_watermark == 20


async def test_an_idle_topic_keeps_its_active_segment_until_it_is_rolled(api, clock, lives) -> None:
    """Records of an idle topic expire once segment.ms rolls the active segment, and the end offset stays the same."""
    topic = await api.admin.create_topic("flights", config={"retention.ms": 1000})
    await api.produce("flights", *"abc")
    clock.move(6 * DAY_SECONDS)
    await api.looks()
    before = await api.start_and_end("flights")
    await api.admin.alter_topic("flights", config={"segment.ms": 1000})
    await api.begins_at("flights", 3)
    emptied = await api.start_and_end("flights")
    answer = await api.produce("flights", "d")

    assert before == (0, 3)
    assert emptied == (3, 3)
    assert answer.json["base_offset"] == 3
    assert await api.offsets_read("flights") == [3]
    assert [int(path.stem) for path in lives.segments(topic.topic_id)][-1] == 3


async def test_an_emptied_log_survives_a_restart(api, clock, lives) -> None:
    """An emptied log keeps its start and end offset across a restart, and no offset is assigned twice."""
    await api.admin.create_topic("flights", config={"retention.ms": 1000, "segment.ms": 1000})
    await api.produce("flights", *"abc")
    clock.move(10)
    await api.begins_at("flights", 3)
    await api.running.stop()
    api = await lives.start()

    assert await api.start_and_end("flights") == (3, 3)
    assert (await api.produce("flights", "d")).json["base_offset"] == 3


async def test_old_times_of_producers_expire_and_append_times_do_not(api, clock) -> None:
    """Records with old timestamps expire at the first check with CreateTime, and do not expire with LogAppendTime."""
    long_ago = clock.now_us() // 1000 - 30 * DAY_SECONDS * SECOND_MS
    for name, kind in (("created", "CreateTime"), ("appended", "LogAppendTime")):
        config = {
            "retention.ms": 3600 * SECOND_MS,
            "segment.ms": 60 * SECOND_MS,
            "message.timestamp.type": kind,
        }
        await api.admin.create_topic(name, config=config)
        await api.produce(name, "a", timestamp=long_ago)
    clock.move(120)
    await api.begins_at("created", 1)
    await api.looks()

    assert await api.start_and_end("appended") == (0, 1)
    clock.move(3600)
    await api.begins_at("appended", 1)


async def test_a_time_in_the_future_pins_a_segment_and_is_refused_by_default(api, clock) -> None:
    """A timestamp over an hour ahead is refused by default; if allowed, it keeps the segment from being deleted."""
    week_ahead = clock.now_us() // 1000 + 7 * DAY_SECONDS * SECOND_MS
    config = {"retention.ms": 1000, "segment.ms": 1000}
    await api.admin.create_topic("bounded", config=config)
    await api.admin.create_topic("open", config={**config, "message.timestamp.after.max.ms": 2**62})
    refused = await api.produce("bounded", "a", timestamp=week_ahead)
    await api.produce("open", "a", timestamp=week_ahead)
    clock.move(2)
    await api.produce("open", "b")
    clock.move(2)
    await api.looks()
    pinned = await api.start_and_end("open")
    clock.move(7 * DAY_SECONDS)
    await api.begins_at("open", 2)

    assert (refused.status, refused.json["code"]) == (422, "invalid_record")
    assert pinned == (0, 2)


async def test_a_consumer_behind_the_start_gets_an_error_and_continues(api, clock) -> None:
    """A fetch below the log start of an emptied log is refused, and a fetch at its end returns no records."""
    await api.admin.create_topic("flights", config={"retention.ms": 1000, "segment.ms": 1000})
    await api.produce("flights", *"abc")
    clock.move(10)
    await api.begins_at("flights", 3)
    at_the_end = await api.fetch("flights", 3)
    by_time = await api.admin.offsets("flights", 0)

    assert at_the_end.status == 204
    assert by_time.log_start_offset == by_time.high_watermark == 3
    for offset in (0, 2):
        assert (await api.fetch("flights", offset)).status == 410


@pytest.mark.parametrize("retention_ms", [-1, 7 * DAY_SECONDS * SECOND_MS])
async def test_nothing_expires_early(api, clock, retention_ms: int) -> None:
    """No segment expires early: with a week's retention or no limit, all records are still stored after two days."""
    await api.admin.create_topic("flights", config={"retention.ms": retention_ms, "segment.ms": 1000})
    for _ in range(3):
        await api.produce("flights", "a")
        clock.move(DAY_SECONDS / 2)
    await api.looks()

    assert await api.offsets_read("flights") == [0, 1, 2]
