"""Kafka's clients in `enforce` mode: tokens by SASL over TLS, access rules, quotas and the audit log."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import Phase, find, settings

from broker_kit import Calls
from certificate_kit import Authority
from cluster_kit import Cluster
from fairlead_broker.kafka.calls import sasl
from fairlead_broker.kafka.protocol.apis import APIS, Api, ApiKey
from fairlead_broker.kafka.protocol.errors import KafkaError as Error
from fairlead_broker.kafka.protocol.messages import MESSAGES
from fairlead_broker.kafka.throttling import PUBLIC_APIS
from issuer_kit import AUDIENCE, TestIssuer
from kafka_kit import SECONDS_MAX, consumed, produced
from kafka_messages import filled, message_of
from kafka_wire import KafkaConnection
from security_kit import Secured

FREE = "127.0.0.1:0"
FIRST = settings(max_examples=1, phases=(Phase.generate,), database=None)
"""Settings with which `find` takes the first example, and does not look for the simplest."""


class KafkaSecured(Secured):
    """A broker in `enforce` mode whose Kafka listener uses TLS."""

    folder: Path
    authority: Authority
    issuer: TestIssuer

    @property
    def kafka(self) -> str:
        """Address of the Kafka listener."""
        address = self.cluster.brokers[1].addresses.kafka
        assert address is not None
        return address

    def client(self, token: str | None, mechanism: str = "PLAIN", **settings: object) -> dict[str, Any]:
        """Return the settings of a client of librdkafka."""
        common = {"ssl.ca.location": str(self.folder / "ca.crt"), "error_cb": lambda _: None, **settings}
        if token is None:
            return {**common, "security.protocol": "SSL"}
        if mechanism == "PLAIN":
            given: dict[str, Any] = {"sasl.username": "token", "sasl.password": token}
        else:
            given = {"oauth_cb": lambda _: (token, time.time() + 300)}
        return {**common, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, **given}

    @property
    def tls(self) -> ssl.SSLContext:
        """Context that trusts the broker."""
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[KafkaSecured]:
    """Yield a broker with TLS on its Kafka listener, and an issuer of signed tokens."""
    async with secured_broker(tmp_path) as found:
        yield found


@asynccontextmanager
async def secured_broker(tmp_path: Path, **settings: object) -> AsyncIterator[KafkaSecured]:
    """Run a broker with TLS on its Kafka listener."""
    authority, issuer = Authority.make(), TestIssuer()
    folder = authority.issue().write(tmp_path / "tls", authority)
    keys, file = tmp_path / "keys.json", tmp_path / "admin.token"
    keys.write_bytes(issuer.jwks)
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(
            1,
            security="enforce",
            admin_token_file=file,
            tls=folder,
            listen=f"http://{FREE}",
            peer_listen=f"http://{FREE}",
            ops_listen=f"http://{FREE}",
            kafka_listen=FREE,
            issuers={"corp": {"issuer": issuer.issuer, "jwks": str(keys), "audience": AUDIENCE}},
            **settings,
        )
        address = cluster.brokers[1].addresses.data
        assert address is not None
        async with Calls(address) as calls:
            found = KafkaSecured(cluster, calls, file.read_text().strip())
            found.folder, found.authority, found.issuer = folder, authority, issuer
            await found.call("POST", "/v1/topics", found.admin, {"name": "orders"})
            yield found
    finally:
        await cluster.close()


async def authenticate(connection: KafkaConnection, mechanism: str, message: bytes) -> Any:
    """Present a token and return the answer."""
    await connection.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
    return await connection.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)


async def test_a_token_decides_what_a_client_may_do(
    secured: KafkaSecured, caplog: pytest.LogCaptureFixture
) -> None:
    """A principal produces to its topic with an API token, but not to another; the refusal is in the audit log."""
    token = (await secured.token("user:ann"))["token"]
    await secured.acl("user:ann", "read,write,describe", "topic:orders")
    await secured.acl("user:ann", "describe", "group:unused")
    await secured.call("POST", "/v1/topics", secured.admin, {"name": "other"})
    settings = secured.client(token)

    await asyncio.to_thread(produced, secured.kafka, "orders", [{"value": b"v"}], **settings)
    [found] = await asyncio.to_thread(consumed, secured.kafka, "orders", 1, **settings)
    with pytest.raises(AssertionError) as refused:
        await asyncio.to_thread(produced, secured.kafka, "other", [{"value": b"v"}], **settings)

    assert found.value() == b"v"
    assert "TOPIC_AUTHORIZATION_FAILED" in str(refused.value)
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "fairlead.audit"]
    denied = next(each for each in lines if each["event"] == "denied")
    assert (denied["principal"], denied["resource"], denied["address"]) == (
        "user:ann",
        "topic:other",
        "127.0.0.1",
    )
    assert denied["route"].startswith("kafka:")


async def test_a_signed_token_names_a_principal(secured: KafkaSecured) -> None:
    """A token of an issuer works with OAUTHBEARER and with PLAIN, and its principal has the access of its ACLs."""
    await secured.acl("corp:ann", "read,write,describe", "topic:orders")

    for mechanism in ("OAUTHBEARER", "PLAIN"):
        settings = secured.client(secured.issuer.token(), mechanism)
        await asyncio.to_thread(produced, secured.kafka, "orders", [{"value": b"v"}], **settings)


async def test_refused_tokens_and_anonymous_clients_get_nothing(
    secured: KafkaSecured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong token is refused with Kafka's error; a client without token, or with too many bytes, is disconnected."""
    monkeypatch.setattr(sasl, "FAILURE_SECONDS", 0.0)

    async def refused(mechanism: str, message: bytes) -> tuple[int, bool]:
        async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
            answer = await authenticate(connection, mechanism, message)
            with pytest.raises(asyncio.IncompleteReadError):
                await connection.ask(ApiKey.METADATA, 12, topics=None)
            return answer.error_code, bool(answer.error_message)

    wrong = [
        await refused("PLAIN", b"\0token\0flt_abcdefghijkl_" + b"A" * 43),
        await refused("PLAIN", b"\0ann\0" + secured.admin.encode()),
        await refused("PLAIN", b"token"),
        await refused("OAUTHBEARER", b"n,,\x01host=x\x01\x01"),
    ]
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        unknown = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        raw = await connection.ask(ApiKey.SASL_HANDSHAKE, 0, mechanism="PLAIN")
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        early = await connection.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0token\0x")
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        versions = await connection.ask(ApiKey.API_VERSIONS, 3)
        with pytest.raises(asyncio.IncompleteReadError):
            await connection.ask(ApiKey.METADATA, 12, topics=None)
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await connection.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=bytes(100_000))

    assert wrong == [(Error.SASL_AUTHENTICATION_FAILED, True)] * 4
    assert (unknown.error_code, sorted(unknown.mechanisms)) == (
        Error.UNSUPPORTED_SASL_MECHANISM,
        ["OAUTHBEARER", "PLAIN"],
    )
    assert (raw.error_code, early.error_code) == (Error.UNSUPPORTED_VERSION, Error.ILLEGAL_SASL_STATE)
    assert versions.error_code == Error.NONE


async def test_no_api_answers_a_client_without_a_token(secured: KafkaSecured) -> None:
    """Every API except those with which a client authenticates closes the connection of a client without a token."""

    async def is_answered(api: Api) -> bool:
        request = MESSAGES[api.key][0]
        values = find(filled(request.json, api.last), lambda _: True, settings=FIRST, random=Random(api.key))
        async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
            await connection.send(api.key, api.last, message_of(request, api.last, values))
            try:
                await connection.answer(api.key, api.last)
            except asyncio.IncompleteReadError:
                return False
            return True

    closed = [api for api in APIS.values() if api.key not in PUBLIC_APIS]
    answers = await asyncio.gather(*map(is_answered, closed))
    answered = [api.name for api, answer in zip(closed, answers, strict=True) if answer]

    assert answered == []


async def test_a_session_ends_with_its_token(secured: KafkaSecured) -> None:
    """The answer states how long a token is valid, a token can be replaced, and a revoked one ends the connection."""
    created = await secured.token("user:ann", expires_in_seconds=600)
    other = (await secured.token("user:bob"))["token"]
    message = b"\0token\0" + created["token"].encode()
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        first = await authenticate(connection, "PLAIN", message)
        again = await authenticate(connection, "PLAIN", message)
        seen = await connection.ask(ApiKey.METADATA, 12, topics=[])
        await secured.call("DELETE", f"/v1/tokens/{created['token_id']}", secured.admin)
        with pytest.raises(asyncio.IncompleteReadError):
            await connection.ask(ApiKey.METADATA, 12, topics=[])
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        bob = await authenticate(connection, "PLAIN", b"\0token\0" + other.encode())
        admin = await authenticate(connection, "PLAIN", b"\0token\0" + secured.admin.encode())

    assert (first.error_code, again.error_code) == (Error.NONE, Error.NONE)
    assert 0 < first.session_lifetime_ms <= 600_000
    assert seen.topics == []
    assert bob.error_code == Error.NONE
    assert admin.error_code == Error.SASL_AUTHENTICATION_FAILED


async def test_a_client_beyond_its_quota_waits(secured: KafkaSecured) -> None:
    """A produce request over a quota is stored, its answer states the time to wait, and the next request is delayed."""
    token = (await secured.token("user:ann"))["token"]
    await secured.acl("user:ann", "all", "topic:*")
    limits = {"each": {"produce_bytes_per_second": 40_000}}
    await secured.call("PUT", f"/v1/quotas/{quote('user:ann', safe='')}", secured.admin, limits)
    producer = Producer(
        {
            "bootstrap.servers": secured.kafka,
            "statistics.interval.ms": 100,
            "linger.ms": 0,
            **secured.client(token),
        }
    )
    delivered: list[float] = []

    def produce() -> float:
        begun = time.monotonic()
        for _ in range(2):
            producer.produce(
                "orders", b"x" * 60_000, on_delivery=lambda *_: delivered.append(time.monotonic())
            )
            assert producer.flush(SECONDS_MAX) == 0
        return delivered[1] - begun

    assert await asyncio.to_thread(produce) > 0.3
    assert len(delivered) == 2


async def test_a_replaced_certificate_is_used_for_new_connections(secured: KafkaSecured) -> None:
    """After new files, new connections get the new certificate, and an open connection continues."""
    async with KafkaConnection.open(secured.kafka, secured.tls) as before:
        first = before.certificate
        issued = secured.authority.issue()
        issued.write(secured.folder, secured.authority)
        secured.cluster.brokers[1].look_at_certificates()
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                async with KafkaConnection.open(secured.kafka, secured.tls) as after:
                    if after.certificate != first:
                        break
        answer = await before.ask(ApiKey.API_VERSIONS, 3)

    assert answer.error_code == Error.NONE


async def test_an_admin_client_is_refused_by_its_rules(secured: KafkaSecured) -> None:
    """An admin call without permission has Kafka's authorization error, and changes nothing."""
    token = (await secured.token("user:ann"))["token"]
    await secured.acl("user:ann", "describe", "topic:*")
    admin = AdminClient({"bootstrap.servers": secured.kafka, **secured.client(token)})

    def create() -> int:
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic("new", 1, 1)])["new"].result(SECONDS_MAX)
        code: int = refused.value.args[0].code()
        return code

    assert await asyncio.to_thread(create) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert (await secured.call("GET", "/v1/topics/new", secured.admin)).status == 404


async def test_a_member_by_pattern_reads_only_what_it_may(secured: KafkaSecured) -> None:
    """A member with a regular expression (KIP-848) is assigned no internal topic without a rule for internal names.

    After its rule is deleted, the member's next heartbeat is refused like a join, and the group removes the member
    (rule Z14).
    """
    for name in ("__internal", "shop.a"):
        await secured.call("POST", "/v1/topics", secured.admin, {"name": name, "partitions": 1})
    token = (await secured.token("user:ann"))["token"]
    await secured.acl("user:ann", "read", "group:g")
    every = await secured.acl("user:ann", "read", "topic:*")
    async with KafkaConnection.open(secured.kafka, secured.tls) as connection:
        await authenticate(connection, "PLAIN", b"\0token\0" + token.encode())

        async def beat(epoch: int, pattern: str | None = None) -> Any:
            joins = epoch == 0
            return await connection.ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=epoch,
                instance_id=None, rack_id=None, subscribed_topic_names=None, subscribed_topic_regex=pattern,
                server_assignor=None, rebalance_timeout_ms=60_000 if joins else -1,
                topic_partitions=[] if joins else None,
            )  # fmt: skip

        hidden = await beat(0, "__.*")
        joined = await beat(0, "(__)?[a-z.]*")
        await secured.acl("user:other", "read", "topic:other")
        kept = await beat(joined.member_epoch)
        await secured.call("DELETE", f"/v1/acls/{every}", secured.admin)
        refused, unknown = await beat(joined.member_epoch), await beat(joined.member_epoch)
        again = await beat(0, ".*")

    assigned = {str(each.topic_id) for each in joined.assignment.topic_partitions}
    refusals = [hidden, refused, again]
    assert assigned == {await topic_id(secured, name) for name in ("shop.a", "orders")}
    assert [each.error_code for each in (joined, kept)] == [Error.NONE] * 2
    assert [each.error_code for each in refusals] == [Error.GROUP_AUTHORIZATION_FAILED] * 3
    assert all(
        f"topic:{pattern}" in each.error_message
        for each, pattern in zip(refusals, ("__*", "*", "*"), strict=True)
    )
    assert unknown.error_code == Error.UNKNOWN_MEMBER_ID


async def topic_id(secured: KafkaSecured, name: str) -> str:
    """Return the id of a topic."""
    return str((await secured.call("GET", f"/v1/topics/{name}", secured.admin)).json["topic_id"])


async def test_a_client_certificate_names_its_caller(tmp_path: Path) -> None:
    """With `client_ca`, a client without a token is the principal of its certificate, and a token takes its place."""
    clients = Authority.make()
    folder = clients.issue(["billing.example"], uses=[ExtendedKeyUsageOID.CLIENT_AUTH]).write(
        tmp_path / "own", clients
    )
    own = {"ssl.certificate.location": str(folder / "tls.crt"), "ssl.key.location": str(folder / "tls.key")}
    async with secured_broker(tmp_path, client_ca=folder / "ca.crt") as secured:
        await secured.acl("cert:billing.example", "write,describe", "topic:orders")
        token = (await secured.token("user:ann"))["token"]

        await asyncio.to_thread(
            produced, secured.kafka, "orders", [{"value": b"v"}], **secured.client(None, **own)
        )
        with pytest.raises(AssertionError) as refused:
            await asyncio.to_thread(
                produced, secured.kafka, "orders", [{"value": b"v"}], **secured.client(token, **own)
            )
        with pytest.raises(KafkaException) as unknown:
            await asyncio.to_thread(
                AdminClient({"bootstrap.servers": secured.kafka, **secured.client(None)}).list_topics,
                timeout=5,
            )

    assert "TOPIC_AUTHORIZATION_FAILED" in str(refused.value)
    assert unknown.value.args[0].code() == KafkaError._TRANSPORT
