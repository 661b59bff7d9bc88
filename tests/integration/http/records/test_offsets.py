"""Offsets over HTTP."""

from fairlead_api.timestamps import format_timestamp

START_US = 1_700_000_000_000_000


async def test_ends_of_a_partition(api, batch_of) -> None:
    """Four kinds of offsets of a partition can be requested, and the answer contains the leader epoch."""
    await api.create("flights")
    await api.post_batch("/v1/topics/flights/partitions/0/records", batch_of(b"a", b"b", b"c"))
    answer = await api.get("/v1/topics/flights/partitions/0/offsets")

    assert answer.json == {
        "log_start_offset": 0, "high_watermark": 3, "log_end_offset": 3, "last_stable_offset": 3, "leader_epoch": 0,
    }  # fmt: skip


async def test_offset_at_a_time(api, batch_of) -> None:
    """A lookup by time returns offset and time of the first record that is not earlier, or null if there is none."""
    await api.create("flights")
    for seconds in (0, 10, 20):
        batch = batch_of(b"a", b"b", timestamp_us=START_US + seconds * 1_000_000)
        await api.post_batch("/v1/topics/flights/partitions/0/records", batch)
    path = "/v1/topics/flights/partitions/0/offsets?timestamp="
    exact = await api.get(f"{path}{START_US // 1000 + 10_000}")
    between = await api.get(f"{path}{format_timestamp(START_US + 10_000_001)}")
    beyond = await api.get(f"{path}{START_US // 1000 + 20_001}")

    assert (exact.json["offset"], exact.json["timestamp"]) == (2, format_timestamp(START_US + 10_000_000))
    assert (between.json["offset"], between.json["timestamp"]) == (4, format_timestamp(START_US + 20_000_000))
    assert (beyond.json["offset"], beyond.json["timestamp"]) == (None, None)


async def test_lookup_of_many(api, batch_of) -> None:
    """Lookups of many partitions by earliest, latest or time are answered in order, including problems."""
    topic_id = await api.create("flights")
    await api.post_batch(
        "/v1/topics/flights/partitions/0/records", batch_of(b"a", b"b", timestamp_us=START_US)
    )
    entry = {"topic": "flights", "partition": 0}
    good = [{**entry, "timestamp": position} for position in ("earliest", "latest", START_US // 1000)]
    bad = [{"topic": "ghost", "partition": 0, "timestamp": 0}, {**entry, "partition": 9, "timestamp": 0}]
    all_good = await api.post("/v1/offsets:lookup", {"partitions": good})
    mixed = await api.post("/v1/offsets:lookup", {"partitions": [*bad, *good]})

    assert (all_good.status, mixed.status) == (200, 207)
    assert [found["offset"] for found in all_good.json["partitions"]] == [0, 2, 0]
    assert {found["topic_id"] for found in all_good.json["partitions"]} == {topic_id}
    assert all_good.json["partitions"][2]["timestamp"] == format_timestamp(START_US)
    assert [found.get("problem", {}).get("code") for found in mixed.json["partitions"]] == [
        "topic_not_found", "partition_not_found", None, None, None,
    ]  # fmt: skip


async def test_a_lookup_with_a_later_leader_epoch(api, batch_of) -> None:
    """A lookup by a client that knows a newer leader epoch is refused: this leader may be outdated (KIP-320)."""
    await api.create("flights")
    stored = await api.post_batch("/v1/topics/flights/partitions/0/records", batch_of(b"a"))
    entry = {"topic": "flights", "partition": 0, "timestamp": "latest"}
    seen = [stored.json["leader_epoch"] + above for above in (0, 1)]
    answer = await api.post(
        "/v1/offsets:lookup", {"partitions": [{**entry, "leader_epoch": each} for each in seen]}
    )
    same, later = answer.json["partitions"]

    assert (same["offset"], same["leader_epoch"]) == (1, stored.json["leader_epoch"])
    assert (later["offset"], later["problem"]["code"]) == (None, "unknown_leader_epoch")


async def test_wrong_lookups(api) -> None:
    """A lookup with an invalid position or partition is refused, and the refusal names the position of the mistake."""
    await api.create("flights")
    codes = [
        (await api.post("/v1/offsets:lookup", body)).code
        for body in (
            {},
            {"partitions": [{"topic": "flights", "partition": 0}]},
            {"partitions": [{"topic": "flights", "partition": -1, "timestamp": 0}]},
            {"partitions": [{"topic": "flights", "partition": 0, "timestamp": "soon"}]},
            {"partitions": [{"topic": "..", "partition": 0, "timestamp": 0}]},
            {"partitions": [{"topic": "flights", "partition": 0, "timestamp": 0, "colour": 1}]},
        )
    ]

    assert codes == ["malformed_request"] * 4 + ["invalid_topic_name", "unknown_option"]
