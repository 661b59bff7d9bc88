"""Links with `acls` copy the access rules on mirrored topics and copied groups."""

from __future__ import annotations

from cluster_kit import Cluster
from fairlead import Admin
from fairlead_api.bodies.links import AlterLinkRequest, NamePatterns
from link_kit import handed_over, link, until, url


async def test_acls_follow_the_source_until_the_promotion(source: Cluster, target: Cluster) -> None:
    """Rules are copied for exactly the mirrors, follow the source, and stay when they are no longer copied."""
    for topic in ("flights", "trips"):
        await source.led(topic, await source.topic(topic, replication_factor=1))
    async with Admin(url(source)) as there, Admin(url(target)) as here:
        await there.create_acl("user:ann", ["read"], "topic", "*")
        bob = await there.create_acl("user:bob", ["all"], "topic", "flights", effect="deny")
        await there.create_acl("user:ann", ["describe"], "cluster", "*")
        await link(source, target, acls=True, groups=NamePatterns(include=["*"]))

        async def copied() -> list[tuple[str, str, str, str, str | None]]:
            """Return the rules of the target after another survey of the source."""
            await here.acknowledge_link("east")
            return sorted(
                (each.effect, each.principal, each.kind, each.pattern, each.owner)
                for each in await here.acls()
            )

        async def has_all() -> bool:
            return len(await copied()) == 3

        await until(has_all, "the rules are not copied")
        rules = await copied()
        await there.remove_acl(bob.acl_id)

        async def has_allowing() -> bool:
            return [each[0] for each in await copied()] == ["allow", "allow"]

        await until(has_allowing, "the removed rule stays")
        await handed_over(target, "flights")

        async def is_released() -> bool:
            return [each[4] for each in await copied()] == [None, "link/east"]

        await until(is_released, "the rule of the promoted topic belongs to the link")
        await here.alter_link("east", AlterLinkRequest(acls=False))

        async def are_released() -> bool:
            return [each[4] for each in await copied()] == [None, None]

        await until(are_released, "rules belong to a link that copies no rules")

    assert rules == [
        ("allow", "user:ann", "topic", "flights", "link/east"),
        ("allow", "user:ann", "topic", "trips", "link/east"),
        ("deny", "user:bob", "topic", "flights", "link/east"),
    ]
