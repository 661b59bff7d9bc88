"""The external listener: addresses that its clients get, and clients that know only one address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import FREE, Cluster
from fairlead import Admin, Consumer, Producer
from fairlead.connection.transport import Call, Transport, json_call
from fairlead.errors import NotLeaderError
from fairlead.settings import ConnectionSettings

pytestmark = pytest.mark.slow
PARTITIONS = 3
UNREACHABLE = f"{'x' * 64}.invalid:9520"


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield a cluster without a broker."""
    cluster = await Cluster.open(tmp_path)
    try:
        yield cluster
    finally:
        await cluster.close()


def outside(cluster: Cluster, broker: int = 1) -> str:
    """Return the external address of a broker."""
    address = cluster.brokers[broker].addresses.external
    assert address is not None
    return f"http://{address}"


async def test_one_external_address_serves_clients_without_any_setting(opened: Cluster) -> None:
    """For every broker, external clients get the address that they called, and brokers forward their calls."""
    await opened.start(1, 2, 3, advertise=UNREACHABLE, external_listen=FREE)
    await opened.topic("flights", partitions=PARTITIONS)
    address = outside(opened)
    async with Producer(address) as producer:
        for number in range(30):
            await producer.send("flights", b"%d" % number, partition=number % PARTITIONS)
    got: list[int] = []
    async with Consumer(address, group="g", topics="flights") as consumer:
        async for record in consumer.records():
            got.append(int(record.value or b""))
            if len(got) == 30:
                break
    async with Admin(address) as admin:
        brokers = await admin.brokers()
        committed = await admin.group_offsets("g")

    assert sorted(got) == list(range(30))
    assert sum(entry.offset for entry in committed.values()) == 30
    assert [(each.address, each.external_address) for each in brokers] == [(address, "")] * 3


async def test_each_caller_gets_addresses_of_its_side(opened: Cluster) -> None:
    """External clients get external addresses, even in refusals, and internal clients get internal addresses."""
    await opened.start(
        1, 2, 3, advertise="{id}.inside:9520", external_listen=FREE,
        external_advertise="https://{id}.outside:443",
    )  # fmt: skip
    topic_id = await opened.topic("flights")
    leader = opened.leader(topic_id)
    other = next(broker for broker in opened.brokers if broker != leader)
    inside = f"http://{opened.brokers[other].addresses.data}"
    call = json_call("GET", "/v1/topics/flights/partitions/0/offsets", "offsets")

    async def refusal_of(address: str) -> object:
        """Return the address in the refusal of a call that must not be forwarded."""
        async with Transport(ConnectionSettings(bootstrap=(address,))) as transport:
            with pytest.raises(NotLeaderError) as refused:
                await transport.send(call, address)
        return refused.value.data["address"]

    async with Admin(outside(opened, other)) as far, Admin(inside) as near:
        addresses = [each.address for each in (await far.metadata()).brokers]
        own = [each.address for each in (await near.metadata()).brokers]

    assert addresses == [f"https://{broker}.outside:443" for broker in (1, 2, 3)]
    assert own == [f"http://{broker}.inside:9520" for broker in (1, 2, 3)]
    assert await refusal_of(outside(opened, other)) == f"{leader}.outside:443"
    assert await refusal_of(inside) == f"{leader}.inside:9520"


async def test_a_proxy_that_ends_tls_is_called_with_https(opened: Cluster) -> None:
    """With a setting for a proxy that terminates TLS, clients get https addresses; proxy headers are not read (T14)."""
    await opened.start(1, external_listen=FREE)
    await opened.start(2, external_listen=FREE, external_scheme="https")

    async def metadata_of(address: str, **headers: str) -> str:
        """Return the metadata that a client with these headers gets."""
        call = Call(method="GET", path="/v1/metadata", subject="metadata", headers=headers)
        async with Transport(ConnectionSettings(bootstrap=(address,))) as transport:
            return bytes((await transport.call(call)).body).decode()

    plain, behind_proxy = (outside(opened, broker) for broker in (1, 2))

    assert f'"address":"{plain}"' in await metadata_of(plain, **{"x-forwarded-proto": "https"})
    assert f'"address":"https://{behind_proxy.removeprefix("http://")}"' in await metadata_of(behind_proxy)
