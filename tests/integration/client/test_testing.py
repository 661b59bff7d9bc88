"""`fairlead.testing`: real brokers in the process of a program's tests."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fairlead import Admin, Consumer, Producer, blocking, errors, testing
from refusals import raises


async def test_three_brokers_replicate() -> None:
    """A topic on three brokers has three replicas, and every yielded address answers."""
    async with testing.cluster(brokers=3) as bootstrap:
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("flights", b"UA1545")
        async with Admin(bootstrap.split(",")[2]) as admin:
            topic = await admin.describe_topic("flights")
            cluster = await admin.cluster()
        async with Consumer(bootstrap) as consumer:
            await consumer.assign(topic="flights")
            records = [record.value async for record in consumer.records(until=await consumer.end_offsets())]

    assert (topic.replication_factor, len(cluster.brokers)) == (3, 3)
    assert records == [b"UA1545"]


async def test_a_kept_directory_and_configuration(tmp_path: Path) -> None:
    """Records and configuration in a directory that is kept are present in the next cluster on that directory."""
    config = {"auto.create.topics.enable": False, "retention.ms": 3_600_000}
    async with testing.cluster(data=tmp_path / "data", config=config) as bootstrap, Admin(bootstrap) as admin:
        described = await admin.create_topic("flights")
        with pytest.raises(errors.TopicNotFoundError):
            async with Producer(bootstrap) as producer:
                await producer.send_and_wait("other", b"x")
    async with testing.cluster(data=tmp_path / "data") as bootstrap, Admin(bootstrap) as admin:
        topic = await admin.describe_topic("flights")

    assert topic.name == "flights"
    assert str(described.config["retention.ms"].value) == "3600000"
    with raises(ValueError, "brokers", 0):
        async with testing.cluster(brokers=0):
            pass


async def test_a_secure_cluster_wants_its_authority_and_a_token() -> None:
    """Secure brokers replicate with TLS, refuse a client without a token, and need a known authority."""
    async with testing.cluster(brokers=2, secure=True) as secured:
        async with Producer(**secured.arguments) as producer:
            await producer.send_and_wait("flights", b"UA1545")
        async with Admin(**secured.arguments) as admin:
            who, topic = await admin.whoami(), await admin.describe_topic("flights")
        async with Admin(secured.bootstrap, ca_file=secured.ca_file) as stranger:
            with pytest.raises(errors.UnauthenticatedError):
                await stranger.list_topics()
        async with Admin(secured.bootstrap, token_file=secured.token_file, retry_timeout="1ms") as stranger:
            with raises(errors.UnreachableError, "UnknownIssuer"):
                await stranger.list_topics()

    assert (who.principal, who.mode) == ("user:admin", "enforce")
    assert topic.replication_factor == 2
    assert all(address.startswith("https://") for address in secured.bootstrap.split(","))


def test_without_an_event_loop() -> None:
    """Brokers run in a thread that stops with the block, even when the test inside fails."""

    def fail_with_a_broker() -> None:
        with testing.running_cluster() as bootstrap, blocking.Producer(bootstrap) as producer:
            assert producer.send("flights", b"x").result().offset == 0
            raise KeyError

    with pytest.raises(KeyError):
        fail_with_a_broker()

    assert not [thread for thread in threading.enumerate() if thread.name == "test cluster"]


def test_without_the_broker_the_package_is_named() -> None:
    """If the broker is not installed, the error names the missing package."""
    program = (
        "import importlib.metadata as m; m.entry_points = lambda **_: ()\n"
        "from fairlead import testing\n"
        "try:\n with testing.running_cluster(): pass\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )

    assert "pip install 'fairlead[broker]'" in done.stdout, done.stderr
