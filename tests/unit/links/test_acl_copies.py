"""Which ACLs of a source a link copies, and the changes that make the copies equal."""

from __future__ import annotations

from fairlead_api.access_needs import Kind
from fairlead_broker.access.acl_index import Acl, Effect
from fairlead_broker.links.acl_copies import AclChanges, CopiedNames, changes_of, copies_of, link_of, owner_of

NAMES = CopiedNames({"flights": "east.flights", "trips": "east.trips"}, ["delays"])


def acl(pattern: str, effect: Effect = Effect.ALLOW, kind: Kind = Kind.TOPIC) -> Acl:
    """Return an ACL of the user ann."""
    return Acl(
        effect=effect, principal="user:ann", operations=frozenset({"read"}), kind=kind, pattern=pattern
    )


def test_copies_name_each_mirror_and_group() -> None:
    """A pattern becomes one ACL for each mirror and group that it covers, under the name in this cluster."""
    source = [
        acl("f*"),
        acl("orders"),
        acl("*", kind=Kind.GROUP),
        acl("*", kind=Kind.CLUSTER),
        acl("flights"),
    ]
    found = copies_of(source, NAMES)

    assert found == [acl("east.flights"), acl("delays", kind=Kind.GROUP)]
    assert owner_of("east") == "link/east"
    assert [link_of(owner) for owner in ("link/east", "operator", None)] == ["east", None, None]


def test_changes_never_allow_more_than_before_and_after() -> None:
    """Denying ACLs are created first and removed last; ACLs of promoted topics are released, and others are kept."""
    allow, deny = acl("a"), acl("a", Effect.DENY)
    old_allow, old_deny, of_promoted = acl("b"), acl("b", Effect.DENY), acl("was")
    kept, of_others = acl("kept"), acl("theirs")
    owned = [old_deny, old_allow, of_promoted, kept]
    stored = {each.acl_id for each in (*owned, of_others)}
    changes = changes_of([allow, deny, kept, of_others], owned, stored, {"was"})

    assert changes == AclChanges((deny, allow), (old_allow.acl_id, old_deny.acl_id), (of_promoted.acl_id,))
