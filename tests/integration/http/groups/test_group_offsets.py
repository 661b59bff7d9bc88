"""Committed offsets over HTTP: permitted commits, targets of resets, and refusals that store nothing."""

import pytest

from http_group_kit import Member

pytestmark = pytest.mark.asyncio(loop_scope="module")

GHOST = "00000000-0000-4000-8000-000000000000"


async def test_a_group_continues_at_its_commit(scene, calls) -> None:
    """A new member reads the committed offsets of its group after the member that committed them has left."""
    [member] = await scene.joined("m-1")
    entries = [scene.entry(0, 7, metadata="m"), scene.entry(1, 3, leader_epoch=0)]
    await calls.commit(scene.group, member_id="m-1", member_epoch=member.epoch, offsets=entries)
    await calls.call("DELETE", member.path)
    await scene.joined("m-2")
    found = (await calls.get(f"/v1/groups/{scene.group}/offsets?topics={scene.topic}"))["offsets"]

    assert [(each["partition"], each["offset"], each["metadata"]) for each in found] == [
        (0, 7, "m"),
        (1, 3, ""),
    ]
    assert [(each["topic_id"], each["leader_epoch"]) for each in found] == [
        (scene.topic_id, None),
        (scene.topic_id, 0),
    ]


async def test_refused_commits(scene, calls) -> None:
    """A commit with a stale epoch, or from an unknown or another group's member, is refused and stores nothing."""
    [member] = await scene.joined("m-1")
    other = Member(calls, f"{scene.group}-b", "m-b")
    await other.join(scene.topic)
    kept = await calls.commit(
        scene.group, member_id="m-1", member_epoch=member.epoch, offsets=[scene.entry(0, 5)]
    )
    refused = [
        ({"member_id": "m-1", "member_epoch": member.epoch + 1}, {"member_fenced", "stale_member_epoch"}),
        ({"member_id": "m-1", "member_epoch": member.epoch - 1}, {"stale_member_epoch", "member_fenced"}),
        ({"member_id": "stranger", "member_epoch": member.epoch}, {"member_not_found"}),
        ({"member_id": "m-b", "member_epoch": other.epoch}, {"member_not_found"}),
        ({}, {"group_not_empty"}),
    ]

    assert kept.status == 200, kept
    for fields, codes in refused:
        answers = [await calls.commit(scene.group, **fields, offsets=[scene.entry(0, 9)]) for _ in range(3)]
        assert {answer.code for answer in answers} <= codes, fields
    assert await calls.offsets(scene.group) == {(scene.topic, 0): 5}


async def test_entries_are_refused_one_by_one(scene, calls) -> None:
    """A commit refuses an unknown topic, a wrong topic id and a missing partition, and stores its other entries."""
    [member] = await scene.joined("m-1")
    answer = await calls.commit(
        scene.group,
        member_id="m-1",
        member_epoch=member.epoch,
        offsets=[
            {"topic": "ghost", "partition": 0, "offset": 1},
            scene.entry(0, 1, topic_id=GHOST),
            scene.entry(3, 1),
            scene.entry(2, 1),
        ],
    )
    codes = [each.get("problem", {}).get("code") for each in answer.json["offsets"]]

    assert answer.status == 207
    assert codes == ["topic_not_found", "topic_recreated", "partition_not_found", None]
    assert await calls.offsets(scene.group) == {(scene.topic, 2): 1}


async def test_an_offset_beyond_the_log_is_refused_for_a_reset(scene, calls) -> None:
    """A reset to an offset outside the log is refused, and a shift stops at the ends of the log."""
    assert (await calls.commit(scene.group, offsets=[scene.entry(0, 5)])).status == 200
    path = f"/v1/groups/{scene.group}/offsets:reset"
    beyond = await calls.call("POST", path, {"to": {"offset": 11}})
    assert await calls.offsets(scene.group) == {(scene.topic, 0): 5}
    shifted = await calls.call("POST", path, {"to": {"shift": -100}})

    assert (beyond.status, beyond.json["offsets"][0]["problem"]["code"]) == (207, "offset_out_of_range")
    assert (shifted.status, shifted.json["offsets"][0]["after"]) == (200, 0)


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("latest", 10),
        ({"timestamp": 1_600_000_000_000}, 0),
        ({"timestamp": "2100-01-01T00:00:00Z"}, 10),
        ({"duration": "1s"}, 10),
        ({"shift": 2}, 7),
        ({"offset": 3}, 3),
    ],
)
async def test_a_reset_by_other_means(scene, calls, to: object, after: int) -> None:
    """A reset moves the offsets of named partitions to a time, or by a duration or a number of records."""
    await calls.commit(scene.group, offsets=[scene.entry(partition, 5) for partition in range(3)])
    wanted = {"topic": scene.topic, "partition": 1}
    done = await calls.call("POST", f"/v1/groups/{scene.group}/offsets:reset", {"to": to, "topics": [wanted]})

    assert done.status == 200, done
    assert await calls.offsets(scene.group) == {
        (scene.topic, 0): 5,
        (scene.topic, 1): after,
        (scene.topic, 2): 5,
    }


async def test_several_partitions_of_a_topic_are_reset(scene, calls) -> None:
    """A reset applies to each entry of `partitions`; `partition` and `partitions` together, or neither, are refused."""
    await calls.commit(scene.group, offsets=[scene.entry(partition, 5) for partition in range(3)])
    path = f"/v1/groups/{scene.group}/offsets:reset"
    wanted = {"topic": scene.topic, "partitions": [0, 2]}
    done = await calls.call("POST", path, {"to": "earliest", "topics": [wanted]})
    both = await calls.call("POST", path, {"to": "earliest", "topics": [{**wanted, "partition": 1}]})
    neither = await calls.call("POST", path, {"to": "earliest", "topics": [{"topic": scene.topic}]})

    assert done.status == 200, done
    assert await calls.offsets(scene.group) == {
        (scene.topic, 0): 0,
        (scene.topic, 1): 5,
        (scene.topic, 2): 0,
    }
    assert [(refused.status, refused.json["code"]) for refused in (both, neither)] == [
        (400, "malformed_request")
    ] * 2


async def test_a_group_gets_positions_before_it_begins(scene, calls) -> None:
    """A reset with topics creates the group, unlike a dry run, a refusal or a reset of all topics."""
    path = f"/v1/groups/{scene.group}/offsets:reset"
    named = {"topics": [{"topic": scene.topic, "partitions": [0, 2]}]}
    dry = await calls.call("POST", f"{path}?dry_run=true", {"to": "latest", **named})
    beyond = await calls.call("POST", path, {"to": {"offset": 11}, **named})
    of_all = await calls.call("POST", path, {"to": "latest"})
    before = await calls.call("GET", f"/v1/groups/{scene.group}")
    done = await calls.call("POST", path, {"to": {"shift": 4}, **named})

    assert [(each["before"], each["after"]) for each in dry.json["offsets"]] == [(None, 10)] * 2
    assert (beyond.status, beyond.json["offsets"][0]["problem"]["code"]) == (207, "offset_out_of_range")
    assert (of_all.code, before.code) == ("group_not_found", "group_not_found")
    assert [(each["before"], each["after"]) for each in done.json["offsets"]] == [(None, 4)] * 2
    assert await calls.offsets(scene.group) == {(scene.topic, 0): 4, (scene.topic, 2): 4}


async def test_offsets_are_not_deleted_by_a_body(scene, calls) -> None:
    """Deleting offsets with a body is refused, because the request deletes all offsets."""
    await calls.commit(scene.group, offsets=[scene.entry(0, 5), scene.entry(1, 5)])
    some = {"offsets": [{"topic": scene.topic, "partition": 0}]}
    refused = await calls.call("DELETE", f"/v1/groups/{scene.group}/offsets", some)

    assert (refused.status, refused.json["code"]) == (413, "body_too_large")
    assert await calls.offsets(scene.group) == {(scene.topic, 0): 5, (scene.topic, 1): 5}


async def test_a_live_group_is_not_reset(scene, calls) -> None:
    """Resetting a live group is refused, because its members would overwrite the offsets."""
    [member] = await scene.joined("m-1")
    await calls.commit(scene.group, member_id="m-1", member_epoch=member.epoch, offsets=[scene.entry(0, 5)])
    reset = await calls.call("POST", f"/v1/groups/{scene.group}/offsets:reset", {"to": "earliest"})
    deleted = await calls.call("DELETE", f"/v1/groups/{scene.group}/offsets?topics={scene.topic}")

    assert (reset.code, deleted.code) == ("group_not_empty", "group_not_empty")
    assert await calls.offsets(scene.group) == {(scene.topic, 0): 5}


async def test_offsets_are_forgotten_by_topic(scene, calls) -> None:
    """Offsets are deleted by topic, and the answer lists them."""
    await calls.commit(scene.group, offsets=[scene.entry(0, 5), scene.entry(1, 6)])
    path = f"/v1/groups/{scene.group}/offsets?topics={scene.topic}"
    deleted = await calls.call("DELETE", path)

    assert deleted.status == 200, deleted
    assert [(each["partition"], each["offset"]) for each in deleted.json["offsets"]] == [(0, 5), (1, 6)]
    # A group without members is removed with its last offset.
    left = await calls.call("GET", path)
    assert left.status == 404 or left.json["offsets"] == []


async def test_retention_overtakes_a_consumer(scene, calls) -> None:
    """If a record is deleted, its committed offset is kept, lag counts stored records, and a fetch of it is refused."""
    await calls.commit(scene.group, offsets=[scene.entry(0, 2)])
    trimmed = await calls.call("POST", f"/v1/topics/{scene.topic}/partitions/0:delete-records", {"offset": 8})
    assert trimmed.status == 200, trimmed
    [lag] = (await calls.get(f"/v1/groups/{scene.group}/lag"))["lag"]
    read = await calls.call("GET", f"/v1/topics/{scene.topic}/partitions/0/records?offset=2")

    assert await calls.offsets(scene.group) == {(scene.topic, 0): 2}
    assert (lag["committed_offset"], lag["high_watermark"]) == (2, 10)
    assert lag["lag_records"] == 2
    assert (read.status, read.code) == (410, "offset_expired")


async def test_a_topic_of_the_same_name_starts_clean(scene, calls) -> None:
    """A topic that was created again has no committed offsets, because they belong to the topic id."""
    await calls.commit(scene.group, offsets=[scene.entry(0, 9)])
    assert (await calls.call("DELETE", f"/v1/topics/{scene.topic}")).status == 204
    await calls.three.topic(scene.topic, 3)
    stale = await calls.commit(scene.group, offsets=[scene.entry(0, 9, topic_id=scene.topic_id)])
    found = await calls.call("GET", f"/v1/groups/{scene.group}/offsets?topics={scene.topic}")

    assert stale.json["offsets"][0]["problem"]["code"] == "topic_recreated"
    assert found.status == 404 or found.json["offsets"] == []


async def test_a_partition_of_another_member_is_not_committed(scene, calls) -> None:
    """A commit for a partition of another member is refused despite a valid member epoch."""
    first, second, _ = await scene.joined("m-1", "m-2", "m-3")
    [own], [foreign] = first.partitions, second.partitions
    answer = await calls.commit(
        scene.group,
        member_id="m-1",
        member_epoch=first.epoch,
        offsets=[scene.entry(own, 1), scene.entry(foreign, 2)],
    )

    assert answer.status == 207
    assert [each.get("problem", {}).get("code") for each in answer.json["offsets"]] == [None, "member_fenced"]
    assert await calls.offsets(scene.group) == {(scene.topic, own): 1}


async def test_an_offset_beyond_the_log_is_not_committed(scene, calls) -> None:
    """A commit beyond the log end offset is refused, whichever broker leads, and a commit of the end is stored."""
    await calls.commit(scene.group, offsets=[scene.entry(partition, 1) for partition in range(3)])
    beyond = await calls.commit(scene.group, offsets=[scene.entry(partition, 11) for partition in range(3)])
    refused = [each["problem"] for each in beyond.json["offsets"]]

    assert [(each["code"], each["high_watermark"]) for each in refused] == [("offset_out_of_range", 10)] * 3
    assert set((await calls.offsets(scene.group)).values()) == {1}
    ends = await calls.commit(scene.group, offsets=[scene.entry(partition, 10) for partition in range(3)])
    assert ends.status == 200
    assert set((await calls.offsets(scene.group)).values()) == {10}
