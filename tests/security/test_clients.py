"""Producers and consumers of an enforcing broker: refused topics, and a token that is replaced while they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import Consumer, Producer
from fairlead.errors import ForbiddenError, UnauthenticatedError
from refusals import raises
from security_kit import Secured


async def topics_of(secured: Secured) -> str:
    """Create a topic that `user:ann` may use and one that the user may only describe; return the user's token."""
    for name in ("given", "shown"):
        answer = await secured.call("POST", "/v1/topics", secured.admin, {"name": name, "partitions": 1})
        assert answer.status == 201
    await secured.acl("user:ann", "read,write", "topic:given")
    await secured.acl("user:ann", "describe", "topic:shown")
    await secured.acl("user:ann", "read", "group:*")
    return str((await secured.token("user:ann"))["token"])


def address_of(secured: Secured) -> str:
    """Return the address of the broker."""
    return f"http://{secured.cluster.brokers[1].addresses.data}"


async def test_a_refused_topic_fails_alone(secured: Secured) -> None:
    """A producer at once fails deliveries to the refused topic only, and the error names the next command (rule C4)."""
    token = await topics_of(secured)
    async with Producer(address_of(secured), token=token) as producer:
        given, shown = [await producer.send(topic, b"x") for topic in ("given", "shown")]
        metadata = await given
        with raises(ForbiddenError, "user:ann", "write", "topic:shown") as refused:
            await shown

    assert metadata.topic == "given"
    assert refused.value.data == {"operation": "write", "resource": "topic:shown"}


@pytest.mark.parametrize("group", [None, "delays"])
async def test_a_consumer_raises_what_it_may_not_read(group: str | None, secured: Secured) -> None:
    """Iterating raises an error that names the topic and the operation, whether or not the consumer has a group."""
    token = await topics_of(secured)
    topics = "shown" if group else None
    async with Consumer(address_of(secured), group=group, topics=topics, token=token) as consumer:
        if group is None:
            await consumer.assign(topic="shown", start="earliest")
        with raises(ForbiddenError, "user:ann", "read", "topic:shown") as refused:
            await consumer.next_batch("10s")

    assert refused.value.data == {"operation": "read", "resource": "topic:shown"}
    assert token not in repr(refused.value)


async def test_a_token_is_replaced_while_clients_run(secured: Secured, tmp_path: Path) -> None:
    """After the token in the file has been replaced and the old token revoked, producer and consumer continue."""
    file = tmp_path / "ann.token"
    file.write_text(await topics_of(secured))
    bootstrap = address_of(secured)
    async with (
        Producer(bootstrap, token_file=file, linger_ms=0) as producer,
        Consumer(bootstrap, group="delays", topics="given", start="earliest", token_file=file) as consumer,
    ):
        await producer.send_and_wait("given", b"first")
        read = [await first_of(consumer)]
        old = (await secured.call("GET", "/v1/tokens?principal=user:ann", secured.admin)).json["items"][0]
        file.write_text((await secured.token("user:ann"))["token"])
        await secured.call("DELETE", f"/v1/tokens/{old['token_id']}", secured.admin)
        await producer.send_and_wait("given", b"second")
        read.append(await first_of(consumer))
        await consumer.commit()

    assert read == [b"first", b"second"]


async def test_a_revoked_token_ends_a_producer_and_a_consumer(secured: Secured) -> None:
    """Without a new token, deliveries fail and the iteration raises at once, instead of retrying until a timeout."""
    token = await topics_of(secured)
    bootstrap = address_of(secured)
    producer = await Producer(bootstrap, token=token).start()
    async with Consumer(bootstrap, token=token) as consumer:
        await consumer.assign(topic="given", start="earliest")
        await producer.send_and_wait("given", b"first")
        assert await consumer.next_batch("10s") is not None
        [taken] = (await secured.call("GET", "/v1/tokens?principal=user:ann", secured.admin)).json["items"]
        await secured.call("DELETE", f"/v1/tokens/{taken['token_id']}", secured.admin)
        with raises(UnauthenticatedError, "token"):
            await producer.send_and_wait("given", b"second")
        with pytest.raises(UnauthenticatedError):
            await consumer.next_batch("10s")
    await producer.close()


async def first_of(consumer: Consumer) -> bytes | None:
    """Return the value of the next record."""
    batch = await consumer.next_batch("10s")
    assert batch is not None
    [record] = batch
    return record.value
