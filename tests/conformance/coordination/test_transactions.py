from __future__ import annotations

import asyncio

import pytest

from fairlead_broker.coordination.protocol import (
    OPERATIONS_MAX,
    REQUEST_BYTES_MAX,
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    TransactionTooLarge,
    UnknownOutcome,
)
from fairlead_broker.registry.store_writes import (
    Compare,
    CreateRevision,
    Delete,
    Get,
    KeyValue,
    ModRevision,
    Put,
    Relation,
    Value,
    absent,
    created_at,
    has_value,
    unchanged_since,
)
from refusals import raises

EQUAL, NOT_EQUAL, GREATER, LESS = Relation.EQUAL, Relation.NOT_EQUAL, Relation.GREATER, Relation.LESS


async def read(client: Coordination, key: str) -> KeyValue | None:
    """Read the current value of one key."""
    return (await client.transact((), (Get(key),))).reads[0]


async def test_a_put_is_seen_by_another_client_at_once(client: Coordination, other: Coordination) -> None:
    """A put that is acknowledged to one client is read by every client."""
    written = await client.transact((), (Put("/k", b"1"),))

    assert await read(other, "/k") == KeyValue("/k", b"1", written.revision, written.revision, None)


async def test_the_create_revision_stays_and_the_mod_revision_moves(client: Coordination) -> None:
    """A key keeps its create revision while it exists, and gets a new one when it is created again."""
    first = await client.transact((), (Put("/k", b"1"),))
    second = await client.transact((), (Put("/k", b"2"),))
    changed = await read(client, "/k")
    await client.transact((), (Delete("/k"),))
    third = await client.transact((), (Put("/k", b"3"),))
    again = await read(client, "/k")

    assert changed == KeyValue("/k", b"2", first.revision, second.revision)
    assert again == KeyValue("/k", b"3", third.revision, third.revision)


async def test_one_transaction_takes_one_revision(client: Coordination) -> None:
    """A transaction gives all its keys the same revision, one above the previous revision."""
    before = await client.transact((), (Put("/a", b""),))
    result = await client.transact((), (Put("/b", b""), Put("/c", b""), Delete("/a")))
    page = await client.list("/")

    assert result.revision == before.revision + 1
    assert [(item.key, item.mod_revision) for item in page.items] == [
        ("/b", result.revision),
        ("/c", result.revision),
    ]


async def test_a_transaction_that_changes_nothing_takes_no_revision(client: Coordination) -> None:
    """A transaction that only reads, that deletes missing keys, or whose compares fail, creates no revision."""
    before = await client.transact((), (Put("/a", b""),))
    results = [
        await client.transact((), (Get("/a"), Delete("/missing"))),
        await client.transact((absent("/a"),), (Put("/a", b"new"),)),
    ]

    assert [result.revision for result in results] == [before.revision] * 2
    assert [result.succeeded for result in results] == [True, False]


async def test_deleted_keys_are_counted(client: Coordination) -> None:
    """A transaction returns the number of removed keys, not counting missing keys."""
    await client.transact((), (Put("/a", b""), Put("/b", b"")))
    result = await client.transact((), (Delete("/a"), Delete("/b"), Delete("/c")))

    assert result.deleted == 2


COMPARES: tuple[tuple[Compare, bool], ...] = (
    (ModRevision("/k", EQUAL, 3), True),
    (ModRevision("/k", EQUAL, 2), False),
    (ModRevision("/k", NOT_EQUAL, 3), False),
    (ModRevision("/k", NOT_EQUAL, 2), True),
    (ModRevision("/k", GREATER, 2), True),
    (ModRevision("/k", GREATER, 3), False),
    (ModRevision("/k", LESS, 4), True),
    (ModRevision("/k", LESS, 3), False),
    (CreateRevision("/k", EQUAL, 2), True),
    (CreateRevision("/k", EQUAL, 3), False),
    (CreateRevision("/k", NOT_EQUAL, 2), False),
    (CreateRevision("/k", NOT_EQUAL, 3), True),
    (CreateRevision("/k", GREATER, 1), True),
    (CreateRevision("/k", GREATER, 2), False),
    (CreateRevision("/k", LESS, 3), True),
    (CreateRevision("/k", LESS, 2), False),
    (Value("/k", EQUAL, b"b"), True),
    (Value("/k", EQUAL, b"a"), False),
    (Value("/k", NOT_EQUAL, b"b"), False),
    (Value("/k", NOT_EQUAL, b"a"), True),
    (Value("/k", GREATER, b"a\xff"), True),
    (Value("/k", GREATER, b"b"), False),
    (Value("/k", LESS, b"b\x00"), True),
    (Value("/k", LESS, b"b"), False),
    (CreateRevision("/no", EQUAL, 0), True),
    (CreateRevision("/no", GREATER, 0), False),
    (CreateRevision("/no", LESS, 1), True),
    (ModRevision("/no", EQUAL, 0), True),
    (ModRevision("/no", NOT_EQUAL, 0), False),
    (Value("/no", EQUAL, b""), False),
    (Value("/no", NOT_EQUAL, b""), False),
    (Value("/no", LESS, b"z"), False),
    (absent("/k"), False),
    (absent("/no"), True),
    (created_at("/k", 2), True),
    (unchanged_since("/k", 3), True),
    (has_value("/k", b"b"), True),
)
"""Compares and their expected results, for a key that was created at revision 2 and changed at revision 3."""


async def test_every_kind_of_compare(client: Coordination) -> None:
    """A compare checks the value and revisions of a key against given values, as in etcd."""
    first = await client.transact((), (Put("/k", b"a"),))
    await client.transact((), (Put("/k", b"b"),))
    shift = first.revision - 2
    for number, (written, holds) in enumerate(COMPARES):
        compare = written
        if not isinstance(written, Value) and written.key == "/k" and written.revision:
            compare = type(written)(written.key, written.relation, written.revision + shift)
        yes, otherwise = f"/yes/{number}", f"/else/{number}"
        result = await client.transact((compare,), (Put(yes, b""),), (Put(otherwise, b""),))

        assert result.succeeded is holds, compare
        assert (await read(client, yes) is not None) is holds, compare
        assert (await read(client, otherwise) is None) is holds, compare


async def test_all_compares_must_hold(client: Coordination) -> None:
    """A transaction runs its failure branch when one compare fails."""
    result = await client.transact(
        (absent("/a"), has_value("/b", b"")), (Put("/a", b""),), (Put("/failed", b""), Get("/a"))
    )

    assert not result.succeeded
    assert result.reads == (None,)
    assert await read(client, "/failed") is not None


async def test_reads_see_what_the_transaction_wrote_before_them(client: Coordination) -> None:
    """A transaction runs its operations in order, and its reads see its earlier writes."""
    result = await client.transact((), (Get("/k"), Put("/k", b"1"), Get("/k")))

    assert result.reads == (None, KeyValue("/k", b"1", result.revision, result.revision))


async def test_of_two_clients_that_change_what_they_both_read_one_wins(
    client: Coordination, other: Coordination
) -> None:
    """Of concurrent transactions that compare and set the same key, exactly one succeeds in every round."""
    await client.transact((), (Put("/k", b"0"),))
    for round_number in range(10):
        seen = await read(client, "/k")
        assert seen is not None, "the key was put"
        results = await asyncio.gather(
            *(
                each.transact(
                    (unchanged_since("/k", seen.mod_revision),), (Put("/k", f"{round_number} {n}".encode()),)
                )
                for n in range(4)
                for each in (client, other)
            )
        )

        assert sum(result.succeeded for result in results) == 1


async def test_concurrent_counting_loses_nothing(client: Coordination, other: Coordination) -> None:
    """Increments of one key by the compare-and-set transactions of two clients add up."""

    async def count(each: Coordination) -> None:
        done = 0
        while done < 10:
            seen = await read(each, "/n")
            value = int(seen.value) if seen else 0
            guard = unchanged_since("/n", seen.mod_revision if seen else 0)
            result = await each.transact((guard,), (Put("/n", str(value + 1).encode()),))
            done += result.succeeded

    await asyncio.gather(count(client), count(other), count(client), count(other))
    total = await read(client, "/n")

    assert total is not None
    assert total.value == b"40"


async def test_a_key_cannot_be_changed_twice_in_one_branch(client: Coordination) -> None:
    """A transaction that changes a key twice in one branch is refused as a whole."""
    with raises(ValueError):
        await client.transact((), (Put("/k", b"1"), Put("/k", b"2")))
    with raises(ValueError):
        await client.transact((), (), (Put("/k", b"1"), Delete("/k")))

    assert await read(client, "/k") is None


@pytest.mark.parametrize("key", ["", "/ümlaut"])
async def test_keys_are_ascii_and_not_empty(client: Coordination, key: str) -> None:
    """A key that is empty or not ASCII is refused, because implementations could order other characters differently."""
    with raises(ValueError):
        await client.transact((), (Put(key, b""),))


async def test_each_part_of_a_transaction_may_have_128_entries(client: Coordination) -> None:
    """A transaction may have 128 compares, 128 operations on success and 128 on failure."""
    keys = [f"/k/{n}" for n in range(OPERATIONS_MAX)]
    result = await client.transact(
        [absent(key) for key in keys], [Put(key, b"") for key in keys], [Get(key) for key in keys]
    )

    assert result.succeeded
    assert len((await client.list("/k/")).items) == OPERATIONS_MAX


@pytest.mark.parametrize("part", [0, 1, 2])
async def test_129_entries_of_any_part_are_refused(client: Coordination, part: int) -> None:
    """A transaction with 129 entries of one kind is refused with the number and the limit, and is not applied."""
    keys = [f"/k/{n}" for n in range(OPERATIONS_MAX + 1)]
    parts = ([absent(key) for key in keys], [Put(key, b"") for key in keys], [Put(key, b"") for key in keys])
    chosen: list[tuple[object, ...]] = [(), (), ()]
    chosen[part] = tuple(parts[part])
    with pytest.raises(TransactionTooLarge) as refusal:
        await client.transact(*chosen)  # type: ignore[arg-type]

    assert (refusal.value.size, refusal.value.limit) == (OPERATIONS_MAX + 1, OPERATIONS_MAX)
    assert (await client.list("/")).items == ()


async def test_a_request_of_one_and_a_half_mebibytes_is_the_limit(client: Coordination) -> None:
    """A request just below the limit of 1.5 MiB is stored, and a larger request is not."""
    below, above = bytes(REQUEST_BYTES_MAX - 1024), bytes(REQUEST_BYTES_MAX + 1)
    await client.transact((), (Put("/below", below),))
    with raises(TransactionTooLarge, 1572864):
        await client.transact((), (Put("/above", above),))
    stored = await read(client, "/below")

    assert stored is not None
    assert stored.value == below
    assert await read(client, "/above") is None


async def test_values_are_kept_byte_for_byte(client: Coordination) -> None:
    """A value is stored byte for byte, including the empty value."""
    await client.transact((), (Put("/empty", b""), Put("/all", bytes(range(256)))))
    empty, everything = await read(client, "/empty"), await read(client, "/all")

    assert empty is not None
    assert empty.value == b""
    assert everything is not None
    assert everything.value == bytes(range(256))


def test_an_unknown_outcome_is_not_a_definite_failure() -> None:
    """A handler for an unavailable store, which retries, does not catch the error for an unknown outcome."""
    assert issubclass(UnknownOutcome, CoordinationError)
    assert not issubclass(UnknownOutcome, CoordinationUnavailable)
    assert not issubclass(CoordinationUnavailable, UnknownOutcome)
