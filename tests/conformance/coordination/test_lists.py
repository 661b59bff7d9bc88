from __future__ import annotations

import pytest

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.protocol import (
    Compacted,
    Coordination,
    FutureRevision,
)
from fairlead_broker.registry.store_writes import (
    Delete,
    KeyValue,
    Put,
)


async def list_all(client: Coordination, prefix: str, limit: int) -> list[KeyValue]:
    """Read every page of a list at the revision of the first page."""
    page = await client.list(prefix, limit=limit)
    items, revision = list(page.items), page.revision
    while page.next is not None:
        page = await client.list(prefix, revision=revision, after=page.next, limit=limit)
        assert page.revision == revision, "every page says which revision it shows"
        items += page.items
    return items


async def test_a_list_has_the_prefix_and_nothing_else(client: Coordination) -> None:
    """A list returns only keys with the prefix, in the order of their bytes."""
    keys = ["/a", "/a/", "/a/1", "/a/10", "/a/2", "/a/Z", "/a/z", "/a0", "/b"]
    await client.transact((), [Put(key, b"") for key in reversed(keys)])

    assert [item.key for item in (await client.list("/a/")).items] == [
        "/a/",
        "/a/1",
        "/a/10",
        "/a/2",
        "/a/Z",
        "/a/z",
    ]
    assert [item.key for item in (await client.list("")).items] == keys
    assert (await client.list("/c")).items == ()


async def test_pages_of_a_list_show_one_revision(client: Coordination, other: Coordination) -> None:
    """A page of a list does not show changes after the first page."""
    await client.transact((), [Put(f"/k/{n}", b"old") for n in range(7)])
    first = await client.list("/k/", limit=3)
    await other.transact((), [Put(f"/k/{n}", b"new") for n in (0, 4, 9)] + [Delete("/k/5")])
    assert first.next is not None, "there are more than three"
    second = await client.list("/k/", revision=first.revision, after=first.next, limit=3)
    assert second.next is not None, "there are more than six"
    third = await client.list("/k/", revision=first.revision, after=second.next, limit=3)
    items = first.items + second.items + third.items

    assert [(item.key, item.value) for item in items] == [(f"/k/{n}", b"old") for n in range(7)]
    assert third.next is None


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
async def test_pages_of_any_size_leave_nothing_out(client: Coordination, limit: int) -> None:
    """A page that is exactly full is the last page if no key follows."""
    await client.transact((), [Put(f"/k/{n}", b"") for n in range(6)])

    assert [item.key for item in await list_all(client, "/k/", limit)] == [f"/k/{n}" for n in range(6)]


async def test_a_page_has_at_most_a_thousand_keys(client: Coordination) -> None:
    """A list without a limit has pages of a thousand keys."""
    for start in range(0, 1100, 100):
        await client.transact((), [Put(f"/k/{n:04}", b"") for n in range(start, start + 100)])
    page = await client.list("/k/")

    assert len(page.items) == 1000
    assert page.next == "/k/0999"
    assert len(await list_all(client, "/k/", 1000)) == 1100


async def test_an_older_revision_can_be_listed(client: Coordination) -> None:
    """A list at an older revision shows the keys of that revision, including keys deleted since."""
    first = await client.transact((), (Put("/a", b"1"), Put("/b", b"1")))
    second = await client.transact((), (Put("/a", b"2"), Delete("/b")))
    third = await client.transact((), (Put("/b", b"3"),))
    then = await client.list("/", revision=first.revision)
    later = await client.list("/", revision=second.revision)
    now = await client.list("/")

    assert [(i.key, i.value, i.create_revision, i.mod_revision) for i in then.items] == [
        ("/a", b"1", first.revision, first.revision),
        ("/b", b"1", first.revision, first.revision),
    ]
    assert [(i.key, i.value) for i in later.items] == [("/a", b"2")]
    assert [(i.key, i.value, i.create_revision) for i in now.items] == [
        ("/a", b"2", first.revision),
        ("/b", b"3", third.revision),
    ]
    assert now.revision == third.revision


async def test_a_future_revision_is_refused(client: Coordination) -> None:
    """A list at a revision that does not exist yet is refused."""
    written = await client.transact((), (Put("/a", b""),))
    with pytest.raises(FutureRevision) as refusal:
        await client.list("/", revision=Revision(written.revision + 1))

    assert refusal.value.current == written.revision


async def test_compaction_ends_older_lists_and_keeps_the_others(client: Coordination) -> None:
    """A list below the compacted revision is refused with that revision, and a list at or above it is unchanged."""
    first = await client.transact((), (Put("/a", b"1"), Put("/gone", b"1"), Put("/same", b"1")))
    second = await client.transact((), (Put("/a", b"2"), Delete("/gone")))
    third = await client.transact((), (Put("/a", b"3"),))
    await client.compact(second.revision)
    with pytest.raises(Compacted) as refusal:
        await client.list("/", revision=first.revision)
    then = await client.list("/", revision=second.revision)
    now = await client.list("/", revision=third.revision)

    assert refusal.value.revision == second.revision
    assert [(item.key, item.value) for item in then.items] == [("/a", b"2"), ("/same", b"1")]
    assert [(item.key, item.value) for item in now.items] == [("/a", b"3"), ("/same", b"1")]


async def test_a_list_that_is_compacted_between_its_pages_is_refused(
    client: Coordination, other: Coordination
) -> None:
    """A second page after a compaction is refused instead of being read at another revision."""
    await client.transact((), [Put(f"/k/{n}", b"") for n in range(4)])
    page = await client.list("/k/", limit=2)
    written = await other.transact((), (Put("/k/0", b"new"),))
    await other.compact(written.revision)
    with pytest.raises(Compacted):
        await client.list("/k/", revision=page.revision, after=page.next, limit=2)


async def test_compacting_again_does_nothing_and_ahead_is_refused(client: Coordination) -> None:
    """A compaction below the compacted revision changes nothing, and one ahead of the store's revision is refused."""
    first = await client.transact((), (Put("/a", b"1"),))
    second = await client.transact((), (Put("/a", b"2"),))
    await client.compact(second.revision)
    await client.compact(second.revision)
    await client.compact(first.revision)
    with pytest.raises(FutureRevision):
        await client.compact(Revision(second.revision + 1))

    assert [item.value for item in (await client.list("/")).items] == [b"2"]
