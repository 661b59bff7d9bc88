"""Superusers, the file with the first superuser's token, and the switch against stolen tokens."""

from __future__ import annotations

import stat
from pathlib import Path

from broker_kit import Answer, Calls
from cluster_kit import Cluster
from security_kit import Secured
from waiting import pause

CONFIG = "/v1/cluster/config"
OF_THE_CLUSTER = ("security.mode", "tokens.valid.after", "audit.topic.enable", "feature.level")


async def status_of(secured: Secured, token: str) -> int:
    """Return the status of a call with a token."""
    return (await secured.call("GET", "/v1/whoami", token)).status


async def test_no_acl_refuses_a_superuser(secured: Secured) -> None:
    """A deny of every operation refuses every caller but superusers, which are checked before ACLs (rule A23)."""
    ann = (await secured.token("user:ann"))["token"]
    kinds = ("topic", "group", "producer", "cluster", "security")
    for kind in kinds:
        await secured.acl("user:ann", "all", f"{kind}:*")
    denies = [await secured.acl("*", "all", f"{kind}:*", effect="deny") for kind in kinds]
    refused = [await secured.call("GET", path, ann) for path in ("/v1/cluster", "/v1/security")]
    allowed = await secured.call("GET", "/v1/security", secured.admin)
    removed = [await secured.call("DELETE", f"/v1/acls/{acl}", secured.admin) for acl in denies]
    again = await secured.call("GET", "/v1/cluster", ann)

    assert [answer.code for answer in refused] == ["forbidden"] * 2
    assert [answer.status for answer in (allowed, *removed, again)] == [200] * 7


async def test_the_file_of_the_administrator_has_its_token(tmp_path: Path) -> None:
    """A missing file is created with a new token, which only the file's owner can read (rule A23).

    A revoked token of the file is accepted again after a start with the file, and is refused for good without the file.
    """
    cluster, file = await Cluster.open(tmp_path), tmp_path / "admin.token"
    with_file, without = {"admin_token_file": file, "superusers": "user:root"}, {"superusers": "user:root"}

    async def restarted(**settings: object) -> Calls:
        if cluster.brokers:
            await cluster.stop(1)
        await cluster.start(1, security="enforce", **settings)
        return Calls(str(cluster.brokers[1].addresses.data))

    try:
        async with await restarted(**with_file) as calls:
            token, mode = file.read_text().strip(), stat.S_IMODE(file.stat().st_mode)
            first = Secured(cluster, calls, token)
            root = (await first.token("user:root"))["token"]
            who = (await first.call("GET", "/v1/whoami", token)).json
            own = f"/v1/tokens/{token.split('_')[1]}"
            revoked = [(await first.call("DELETE", own, root)).status, await status_of(first, token)]
        async with await restarted(**with_file) as calls:
            second = Secured(cluster, calls, root)
            stored_again = await status_of(second, token)
            await second.call("DELETE", own, root)
        file.unlink()
        async with await restarted(**without) as calls:
            third = Secured(cluster, calls, root)
            statuses = await status_of(third, token), await status_of(third, root)
    finally:
        await cluster.close()

    assert mode == 0o600
    assert (who["principal"], who["superuser"]) == ("user:admin", True)
    assert revoked == [200, 401]
    assert stored_again == 200
    assert statuses == (401, 200)


async def test_tokens_that_were_created_before_a_time_are_refused(secured: Secured) -> None:
    """With `tokens.valid.after`, all earlier tokens are refused at once, until the key is removed (rule A9).

    A caller cannot set a time after which its own token would be refused, such as a time in the future.
    """
    old = [(await secured.token("user:ann"))["token"], secured.admin]
    clock = secured.cluster.broker(1).clock
    at_ms = clock.now_us() // 1000 + 1
    while clock.now_us() < at_ms * 1000:
        await pause(0.001)
    new = (await secured.token("user:admin"))["token"]

    async def statuses() -> list[int]:
        return [await status_of(secured, token) for token in (*old, new)]

    async def set_(token: str, time_ms: int) -> Answer:
        return await secured.call("PATCH", CONFIG, token, {"config": {"tokens.valid.after": time_ms}})

    refused = [await set_(secured.admin, at_ms), await set_(new, at_ms + 3_600_000)]
    await secured.cluster.start(2, security="enforce", superusers="user:admin")
    async with Calls(str(secured.cluster.brokers[2].addresses.data)) as calls:
        forwarding = Secured(secured.cluster, calls, secured.admin)
        value = {"config": {"tokens.valid.after": at_ms}}
        refused.append(await forwarding.call("PATCH", CONFIG, secured.admin, value))
    before = await statuses()
    changed = await set_(new, at_ms)
    during = await statuses()
    unset = await secured.call("PATCH", CONFIG, new, {"config": {"tokens.valid.after": None}})
    after = await statuses()

    assert [answer.code for answer in refused] == ["would_lock_out"] * 3
    assert (changed.status, unset.status) == (200, 200)
    assert before == after == [200, 200, 200]
    assert during == [401, 401, 200]


async def test_values_of_the_cluster_belong_to_no_broker(secured: Secured) -> None:
    """Mode, `tokens.valid.after`, audit topic and feature level are values of the cluster (rule Z18).

    A broker has no value of its own for these keys.
    """
    listed = (await secured.call("GET", CONFIG, secured.admin)).json["config"]
    refused = [
        await secured.call("PATCH", "/v1/brokers/1/config", secured.admin, {"config": {name: value}})
        for name, value in zip(OF_THE_CLUSTER, ("open", 0, True, 3), strict=True)
    ]

    assert listed.keys() >= set(OF_THE_CLUSTER)
    assert [answer.code for answer in refused] == ["invalid_config"] * len(OF_THE_CLUSTER)
