"""The audit log of real brokers: a line for each refusal and each change, and no secret (rules U1, U2, U3, U4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest  # noqa: TC002

from audit_kit import Lines
from broker_kit import Calls
from cluster_kit import Cluster, until
from fairlead_api.audit_events import AUDIT_TOPIC, AuditRecord
from fairlead_api.configuration import AUDIT_TOPIC_KEY
from fairlead_broker.access import refusal_sums
from fairlead_broker.coordination.cluster_values import cluster_value
from fairlead_broker.runtime import audit_log
from issuer_kit import AUDIENCE, TestIssuer
from security_kit import Secured
from waiting import pause

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def facts_of(records: list[AuditRecord]) -> list[tuple[Any, ...]]:
    """Return event, outcome, principal, route, resource and problem of each record."""
    return [
        (str(each.event), str(each.outcome), each.principal, each.route, each.resource, each.problem)
        for each in records
    ]


class Scene:
    """Calls to a cluster of two brokers, the first of which is the controller, and the resulting audit records."""

    def __init__(self, secured: Secured, lines: Lines) -> None:
        self._secured = secured
        self._lines = lines
        self.token = ""
        self.forged = ""

    async def changes(self) -> list[list[AuditRecord]]:
        """Create a token, an ACL and a topic; return the records of each."""
        secured, lines = self._secured, self._lines
        lines.take()
        token = await secured.token("user:ann", note="till")
        self.token, found = token["token"], [lines.take()]
        await secured.acl("user:ann", "write", "topic:shop.*")
        found.append(lines.take())
        topic = {"name": "shop.orders", "partitions": 2}
        await secured.call("POST", "/v1/topics", secured.admin, topic, traceparent=TRACE)
        return [*found, lines.take()]

    async def refusals(self) -> list[list[AuditRecord]]:
        """Write and read with a right, read three times without a right, then send a changed token."""
        secured, lines = self._secured, self._lines
        record = {"records": [{"value": "a secret record"}]}
        produced = await secured.call("POST", "/v1/topics/shop.orders/records", self.token, record)
        assert produced.status == 200
        await secured.call("GET", "/v1/topics/shop.orders", self.token)
        found = [lines.take()]
        for _ in range(3):
            await secured.call("GET", "/v1/topics/other", self.token)
        found.append(lines.take())
        self.forged = self.token[:-7] + "x" * 7
        await secured.call("GET", "/v1/topics", self.forged)
        await secured.call("GET", "/v1/topics/shop.orders")
        return [*found, lines.take()]

    async def signed(self, token: str) -> AuditRecord:
        """Create a topic with the signed token of `corp:ann`; return the record."""
        await self._secured.acl("corp:ann", "create", "topic:corp.*")
        self._lines.take()
        topic = {"name": "corp.orders", "partitions": 1}
        await self._secured.call("POST", "/v1/topics", token, topic)
        (found,) = self._lines.take()
        return found

    async def removals(self) -> list[AuditRecord]:
        """Change a configuration, remove a token, and fail to delete a topic."""
        secured, lines = self._secured, self._lines
        config = {"config": {"tokens.valid.after": 5}}
        await secured.call("PATCH", "/v1/cluster/config", secured.admin, config)
        await secured.call("DELETE", f"/v1/tokens/{self.token.split('_')[1]}", secured.admin)
        await secured.call("DELETE", "/v1/topics/other", secured.admin)
        return lines.take()


async def test_refusals_and_changes_have_one_line_each_without_secrets(tmp_path: Path, lines: Lines) -> None:
    """Each refusal and change has one audit record, written by the broker that decided it; other calls have none.

    The audit records of the controller name the client, even for requests that another broker has forwarded.
    """
    cluster = await Cluster.open(tmp_path)
    file, issuer = tmp_path / "admin.token", TestIssuer()
    (tmp_path / "keys.json").write_bytes(issuer.jwks)
    corp = {"issuer": issuer.issuer, "audience": AUDIENCE, "jwks": str(tmp_path / "keys.json")}
    try:
        for broker in (1, 2):
            await cluster.start(broker, security="enforce", admin_token_file=file, issuers={"corp": corp})
        address = cluster.brokers[2].addresses.data
        assert address is not None
        async with Calls(address) as calls:
            secured = Secured(cluster, calls, file.read_text().strip())
            scene = Scene(secured, lines)
            made, allowed, created = await scene.changes()
            quiet, denied, strangers = await scene.refusals()
            signed = await scene.signed(issuer.token())
            changed = await scene.removals()
    finally:
        await cluster.close()
    sums = lines.take()

    assert quiet == []
    assert facts_of(made) == [
        ("security_changed", "succeeded", "user:admin", "create_token", "security:*", None)
    ]
    assert made[0].change is not None
    assert made[0].change["principal"] == "user:ann"
    assert facts_of(allowed) == [
        ("security_changed", "succeeded", "user:admin", "create_acl", "security:*", None)
    ]
    assert facts_of(created) == [("admin", "succeeded", "user:admin", "create_topic", None, None)]
    assert (created[0].broker, created[0].address, created[0].traceparent) == (1, "127.0.0.1", TRACE)
    assert created[0].token_id == secured.admin.split("_")[1]
    assert created[0].change == {"topic": "shop.orders", "partitions": 2}
    assert facts_of(denied) == [("denied", "refused", "user:ann", "describe_topic", "topic:other", None)]
    assert facts_of(strangers) == [
        ("authentication_failed", "refused", None, "list_topics", None, "refused"),
        ("denied", "refused", "anonymous", "describe_topic", "topic:shop.orders", None),
    ]
    assert (signed.broker, signed.principal, signed.issuer, signed.kid) == (1, "corp:ann", "corp", "k1")
    assert [each.event for each in changed] == ["security_changed"] * 2 + ["admin"]
    assert changed[0].change == {"config": {"tokens.valid.after": {"old": "0", "new": "5"}}}
    assert (changed[2].outcome, changed[2].problem, changed[2].status) == ("failed", "topic_not_found", 404)
    # The counts of equal refusals are written when the broker stops, at the latest.
    assert [(each.event, each.resource, each.count) for each in sums if each.count > 1] == [
        ("denied", "topic:other", 2)
    ]
    text = "\n".join(lines.every)
    for secret in (secured.admin, scene.token, scene.forged, "a secret record"):
        assert secret not in text
        assert secret.rpartition("_")[2] not in text


async def test_a_stranger_that_varies_the_names_does_not_fill_the_audit_log(
    secured: Secured, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the refusals of one address, a limited number of names is reported; the other refusals are counted together.

    The refusals of a caller with a token are reported as before.
    """
    monkeypatch.setattr(refusal_sums, "CALLER_KINDS_MAX", 3)
    ann = (await secured.token("user:ann"))["token"]
    lines.take()
    for number in range(20):
        await secured.call("GET", f"/v1/topics/guess-{number}")
    await secured.call("GET", "/v1/topics/other", ann)
    at_once = lines.take()
    secured.cluster.broker(1).audit.write_sums()
    [together] = lines.take()

    assert [each.resource for each in at_once] == [
        *(f"topic:guess-{number}" for number in range(4)),
        "topic:other",
    ]
    assert (together.event, together.principal, together.address) == ("denied", "anonymous", "127.0.0.1")
    assert (together.count, together.operation, together.resource, together.route) == (16, None, None, None)


async def test_records_are_also_in_the_topic(tmp_path: Path, lines: Lines) -> None:
    """Audit records of all brokers are in the topic if configured, and an ACL for all topics does not include it.

    A broker that does not lead the topic's partition sends its audit records to the leader.
    """
    cluster = await Cluster.open(tmp_path)
    file = tmp_path / "admin.token"
    try:
        for broker in (1, 2):
            await cluster.start(broker, security="enforce", admin_token_file=file)
        addresses = [str(each.addresses.data) for each in cluster.brokers.values()]
        admin = file.read_text().strip()
        async with Calls(addresses[0]) as first, Calls(addresses[1]) as second:
            secured = [Secured(cluster, calls, admin) for calls in (first, second)]
            ann = (await secured[0].token("user:ann"))["token"]
            await secured[0].acl("user:ann", "all", "topic:*")
            config = {"config": {"audit.topic.enable": True, "default.replication.factor": 1}}
            await secured[0].call("PATCH", "/v1/cluster/config", admin, config)
            await until(
                lambda: all(
                    cluster_value(cluster.broker(number).metadata, AUDIT_TOPIC_KEY) is True
                    for number in (1, 2)
                ),
                "both brokers write to the topic",
            )
            lines.take()
            for each in secured:
                await each.call("GET", "/v1/cluster", ann)
            [refused] = {
                (await each.call("GET", f"/v1/topics/{AUDIT_TOPIC}", ann)).status for each in secured
            }
            written = lines.take()
            stored = await read_until(secured[0], lambda records: all(each in records for each in written))
    finally:
        await cluster.close()

    assert refused == 403
    assert {each.broker for each in stored} == {1, 2}
    assert {each.broker for each in written} == {1, 2}


async def test_records_beyond_a_full_queue_are_logged_and_counted(
    secured: Secured, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a full queue for the topic, a call is answered, its record is logged, and a metric counts it (rule U1)."""
    config = {"config": {"audit.topic.enable": True, "default.replication.factor": 1}}
    await secured.call("PATCH", "/v1/cluster/config", secured.admin, config)
    monkeypatch.setattr(audit_log, "LINES_MAX", 0)
    registry = secured.cluster.brokers[1].broker.telemetry.registry
    before = registry.get_sample_value("fairlead_audit_topic_dropped_total")
    lines.take()
    made = await secured.call("POST", "/v1/topics", secured.admin, {"name": "orders"})
    after = registry.get_sample_value("fairlead_audit_topic_dropped_total")

    assert made.status == 201
    assert [each.route for each in lines.take()] == ["create_topic"]
    assert (before, after) == (0, 1)


async def read_until(secured: Secured, met: Callable[[list[AuditRecord]], bool]) -> list[AuditRecord]:
    """Return the audit records in the topic once they satisfy a condition."""
    while True:
        found: list[AuditRecord] = []
        for partition in range(3):
            path = f"/v1/topics/{AUDIT_TOPIC}/partitions/{partition}/records?offset=0"
            answer = await secured.call("GET", path, secured.admin, accept="application/json")
            if answer.status == 200:
                found += [
                    msgspec.json.decode(each["value"], type=AuditRecord) for each in answer.json["records"]
                ]
        if met(found):
            return found
        await pause(0.1)
