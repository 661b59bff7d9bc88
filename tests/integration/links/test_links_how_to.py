"""The page about links: its commands run between two clusters, in the order of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_kit import Cluster
from fairlead_broker.controlling.linking import promotions
from link_kit import is_writable, promoted, until, url
from page_kit import PageShell, blocks, sections, words

SECTIONS = sections("how-to/links.md")
EAST, WEST = "http://east.example:9520", "http://west.example:9520"


def commands(section: str) -> list[str]:
    """Return the blocks of commands of a section."""
    return [block.text for block in blocks(SECTIONS[section], "console")]


@pytest.fixture
async def east(source: Cluster) -> Cluster:
    """Return the source with two topics and three records each."""
    for name in ("orders-eu", "orders-us"):
        topic_id = await source.topic(name, replication_factor=1)
        topic = await source.led(name, topic_id)
        for number in range(3):
            await topic.produce(b"%d" % number)
    return source


def shells(path: Path, east: Cluster, west: Cluster) -> tuple[PageShell, PageShell]:
    """Return shells whose commands call the source and the receiving cluster."""
    instead = {EAST: url(east), WEST: url(west), "--to 100000": "--to 3"}
    at_east, at_west = ({"FAIRLEAD_BOOTSTRAP": url(each)} for each in (east, west))
    return PageShell(path, at_east, instead), PageShell(path, at_west, instead)


@pytest.mark.slow
async def test_a_mirror_is_read_compared_and_handed_over(
    east: Cluster, target: Cluster, tmp_path: Path
) -> None:
    """A user creates a link, reads and compares a mirror, and moves the writes; then an archive takes nothing twice."""
    _, shell = shells(tmp_path, east, target)
    create, compare = commands("Create a link")
    [promote] = commands("Move the writes to the other cluster")
    [archive] = commands("Keep records for longer")
    await shell.run(create)
    await shell.until("fairlead link describe east", "orders-us")
    read = await shell.run("fairlead consume orders-eu --from-beginning -n 3")
    compared = await shell.run(compare)
    await shell.run(promote)
    await until(lambda: promoted(target, "orders-eu"), "the mirror is not promoted")
    await shell.until("fairlead link describe east", "promoted")
    await shell.run("echo here | fairlead produce orders-eu")
    await shell.run(archive)
    shown = await shell.until("fairlead link describe archive", "id_taken")

    assert read.split() == ["0", "1", "2"]
    replicas = [row for row in words(compared) if row[0] == "0"]
    assert len(replicas) == 3
    assert len({row[4] for row in replicas}) == 1
    assert {row[0] for row in words(shown)} >= {"orders-eu", "orders-us"}


@pytest.mark.slow
async def test_a_whole_cluster_moves(east: Cluster, target: Cluster, tmp_path: Path) -> None:
    """All topics and the offsets of groups move, and the link is deleted when it has no mirrors."""
    at_east, shell = shells(tmp_path, east, target)
    create, promote, delete = commands("Move a whole cluster")
    await at_east.run("fairlead consume orders-eu --group billing --from-beginning -n 2")
    await shell.run(create)
    await shell.until("fairlead link describe east", "orders-us")
    await shell.run(promote)
    for name in ("orders-eu", "orders-us"):
        await until(lambda name=name: promoted(target, name), f"{name} is not promoted")  # type: ignore[misc]
    await shell.run("echo new | fairlead produce orders-eu")
    read = await shell.run("fairlead consume orders-eu --group billing -n 2")
    await shell.run(delete)

    assert read.split() == ["2", "new"]
    assert "east" not in await shell.run("fairlead link list")


@pytest.mark.slow
async def test_a_disaster_is_drilled_in_both_directions(
    east: Cluster, target: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mirrors are promoted without their source; the old source follows, keeps its tail in a file, and writes again."""
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    _, shell = shells(tmp_path, east, target)
    create, _ = commands("Create a link")
    fail_over, go_back = commands("Drill a disaster")
    await shell.run(create)
    await shell.until("fairlead consume orders-eu --from-beginning -n 3", "2")
    await shell.until("fairlead consume orders-us --from-beginning -n 3", "2")
    await east.stop(1)
    await shell.run(fail_over)
    for name in ("orders-eu", "orders-us"):
        await until(lambda name=name: is_writable(target, name), f"{name} is not promoted")  # type: ignore[misc]
    await shell.run("echo west | fairlead produce orders-eu")
    await east.start(1)
    at_east, _ = shells(tmp_path, east, target)
    await at_east.run("echo only-east | fairlead produce orders-eu")
    *follow, promote = go_back.splitlines()
    await at_east.run("\n".join(follow))
    tails = await at_east.until("fairlead link tails back", "orders-eu-0")
    await at_east.until("fairlead consume orders-eu --from-beginning -n 4", "west")
    kept = await at_east.run(f"fairlead consume orders-eu --file {words(tails)[-1][-1]}")
    await at_east.run(promote)
    await until(lambda: promoted(east, "orders-eu", "back"), "the old source is not promoted")
    await at_east.run("echo east-again | fairlead produce orders-eu")
    read = await at_east.run("fairlead consume orders-eu --from-beginning -n 5")

    assert kept.split() == ["only-east"]
    assert read.split() == ["0", "1", "2", "west", "east-again"]
