"""The how-to guide on disk failures: its commands accept damage and compare replicas as printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker_kit import BrokerProgram, Calls, sequenced
from page_kit import Block, PageShell, blocks, sections, words

if TYPE_CHECKING:
    from pathlib import Path

    from cluster_kit import Cluster

SECTION = sections("how-to/disk-faults.md")["Damage"]
TOPIC = "readings"
# The range of the page's command is one of the three batches.
BATCHES = (1200, 60, 740)


def examples() -> tuple[Block, Block]:
    """Return the two commands of the page: accept damage, and compare replicas."""
    accept, compare = blocks(SECTION)
    return accept, compare


def batch(number: int, count: int) -> bytes:
    """Return a batch of readings."""
    return sequenced(sum(BATCHES[:number]), [b"reading %d" % each for each in range(count)])


def change_a_byte(data: Path, at: int) -> None:
    """Change a stored byte of the topic."""
    [segment] = [path for path in data.glob("*/0/*.log") if path.stat().st_size]
    content = bytearray(segment.read_bytes())
    content[at] ^= 1
    segment.write_bytes(content)


@pytest.mark.slow
async def test_damage_is_accepted_as_the_page_says(tmp_path: Path) -> None:
    """Reads fail with the damaged range; after the page's command accepts the damage, consumers skip the range."""
    made = [batch(number, count) for number, count in enumerate(BATCHES)]
    path = f"/v1/topics/{TOPIC}/partitions/0/records?offset=1200"
    broker = BrokerProgram(tmp_path / "data")
    await broker.start()
    try:
        async with Calls(broker.address) as calls:
            await calls.create(TOPIC)
            for each in made:
                assert (await calls.send(TOPIC, each)).status == 200
        broker.kill()
        change_a_byte(broker.data, len(made[0]) + len(made[1]) - 1)
        await broker.start()
        shell = PageShell(
            tmp_path,
            {"FAIRLEAD_BOOTSTRAP": broker.address},
            {"http://127.0.0.1:9520": broker.address, "curl ": "curl --silent --fail-with-body "},
        )
        async with Calls(broker.address) as calls:
            refused = await calls.call("GET", path, None, {"accept": "application/json"})
            await shell.run(examples()[0].text)
            read = await calls.call("GET", path, None, {"accept": "application/json"})
        options = SECTION.partition("`fairlead partition accept-damage")[2].partition("`")[0].split()
        command = f"fairlead partition accept-damage {' '.join(options)}"
        await shell.run(command)
        other = await shell.answer(command.replace("1260", "1270"))
    finally:
        broker.kill()

    assert (refused.status, refused.code) == (500, "log_damaged")
    assert (refused.json["first_offset"], refused.json["next_good_offset"]) == (1200, 1260)
    assert read.json["records"][0]["offset"] == 1260
    assert other[0] == 4
    assert "conflict" in other[2]


@pytest.mark.slow
async def test_copies_are_compared_as_the_page_says(cluster: Cluster, tmp_path: Path) -> None:
    """Equal replicas are reported as equal, and a changed byte is reported with replica, offset and exit code 1."""
    topic_id = await cluster.topic(TOPIC)
    readings = await cluster.led(TOPIC, topic_id)
    for number in range(20):
        await readings.produce(*(b"reading %d" % (100 * number + each) for each in range(100)))
    await cluster.copied(topic_id, 2000)
    url = f"http://{cluster.brokers[1].addresses.data}"
    shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": url})
    command = examples()[1].text
    same = await shell.run(command)
    follower = next(each for each in cluster.brokers if each != cluster.leader(topic_id))
    size = sum(path.stat().st_size for path in (tmp_path / str(follower) / topic_id / "0").glob("*.log"))
    change_a_byte(tmp_path / str(follower), int(size * 0.75))
    differing = words(await shell.run(command, code=1))

    assert words(same)[0] == ["FROM", "TO", "BROKER", "STATE", "DIGEST", "HELD", "DETAIL"]
    assert sorted(line[3] for line in words(same)[1:]) == ["compared", "compared", "leader"]
    assert [line[3] for line in differing[1:] if line[2] == str(follower)] == ["damaged"]
