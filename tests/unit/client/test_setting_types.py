"""Settings of clients that have a wrong type or would have no effect are refused."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from fairlead import Consumer, Producer, blocking
from fairlead.errors import SettingError

PRODUCER: list[tuple[dict[str, Any], str]] = [
    ({"linger_ms": "5ms"}, "linger_ms='5ms' is not allowed: a number of milliseconds"),
    ({"linger_ms": None}, "linger_ms=None is not allowed"),
    ({"linger_ms": True}, "linger_ms=True is not allowed"),
    ({"linger_ms": -1}, "linger_ms=-1 is not allowed"),
    ({"linger_ms": timedelta(milliseconds=5)}, "linger_ms=datetime.timedelta"),
    ({"batch_bytes": "1k"}, "batch_bytes='1k' is not allowed: a whole number, 1 or more"),
    ({"batch_bytes": 1.5}, "batch_bytes=1.5 is not allowed"),
    ({"batch_bytes": True}, "batch_bytes=True is not allowed"),
    ({"columnar_batch_bytes": "1k"}, "columnar_batch_bytes='1k' is not allowed"),
    ({"buffer_bytes": "1k"}, "buffer_bytes='1k' is not allowed"),
    ({"buffer_bytes": 0}, "buffer_bytes=0 is not allowed"),
    ({"buffer_bytes": -5, "batch_bytes": 0}, "batch_bytes=0 is not allowed"),
    ({"request_bytes_max": "x"}, "request_bytes_max='x' is not allowed"),
    ({"requests_in_flight_max": "5"}, "requests_in_flight_max='5' is not allowed"),
    ({"retries_max": "x"}, "retries_max='x' is not allowed: a whole number, 0 or more"),
    ({"retries_max": False}, "retries_max=False is not allowed"),
    ({"idempotence": "no"}, "idempotence='no' is not allowed: True, False"),
    ({"idempotence": 0}, "idempotence=0 is not allowed"),
    ({"name": 5}, "name=5 is not allowed: text"),
    ({"acks": None}, "acks=None is not allowed"),
    ({"compression": 5}, "compression=5 is not allowed"),
]
CONSUMER: list[tuple[dict[str, Any], str]] = [
    ({"fetch_bytes_min": "x"}, "fetch_bytes_min='x' is not allowed"),
    ({"fetch_bytes_max": 4e6}, "fetch_bytes_max=4000000.0 is not allowed"),
    ({"partition_fetch_bytes_max": None}, "partition_fetch_bytes_max=None is not allowed"),
    ({"prefetch_bytes": "x"}, "prefetch_bytes='x' is not allowed"),
    ({"fetch_wait_max": 5}, "fetch_wait_max=5 is not allowed"),
    ({"offset_policy": 5}, "offset_policy=5 is not allowed"),
    ({"group": 5, "topics": "a"}, "group=5 is not allowed: text"),
    ({"group": "g", "topics": 5}, "topics=5 is not allowed"),
    ({"group": "g", "topics": ["a", 5]}, "topics=['a', 5] is not allowed"),
    ({"group": "g", "topics": b"a"}, "topics=b'a' is not allowed"),
    ({"group": "g", "pattern": 5}, "pattern=5 is not allowed"),
    ({"group": "g", "topics": "a", "instance_id": 5}, "instance_id=5 is not allowed"),
    ({"group": "g", "topics": "a", "rack": 5}, "rack=5 is not allowed"),
    ({"group": "g", "topics": "a", "assignor": ["range"]}, "assignor=['range'] is not allowed"),
    ({"group": "g", "topics": "a", "commit": ["after"]}, "commit=['after'] is not allowed"),
    ({"group": "g", "topics": "a", "start": 5}, "start=5 is not allowed"),
    ({"group": "g", "topics": "a", "on_assigned": "f"}, "on_assigned='f' is not allowed"),
    ({"group": "g", "topics": "a", "on_revoked": 5}, "on_revoked=5 is not allowed"),
]
ANY: list[tuple[dict[str, Any], str]] = [
    ({"one_address": "yes"}, "one_address='yes' is not allowed: True or False"),
    ({"bootstrap": 5}, "bootstrap=5 is not allowed"),
    ({"bootstrap": None}, "bootstrap=None is not allowed"),
    ({"bootstrap": b"http://a:1"}, "bootstrap=b'http://a:1' is not allowed"),
    ({"bootstrap": ["http://a:1", 5]}, "bootstrap=['http://a:1', 5] is not allowed"),
    ({"request_timeout": 5}, "request_timeout=5 is not allowed"),
]
OF_A_GROUP: list[tuple[str, Any]] = [
    ("start", "latest"), ("start", "yesterday"), ("commit", "manual"), ("commit", "never"),
    ("auto_commit_interval", "1s"), ("on_assigned", print), ("on_revoked", print), ("processing_timeout", "1m"),
    ("session_timeout", "10s"), ("rebalance_timeout", "1m"), ("instance_id", "one"), ("rack", "r1"),
    ("assignor", "range"),
]  # fmt: skip


@pytest.mark.parametrize("producer", [Producer, blocking.Producer])
@pytest.mark.parametrize(("settings", "told"), [*PRODUCER, *ANY])
def test_a_producer_names_the_setting_of_a_wrong_type(
    producer: type[Producer], settings: dict[str, Any], told: str
) -> None:
    """A producer's setting of a wrong type is refused with its name, its value and the allowed values."""
    with pytest.raises(SettingError, match=re.escape(told)):
        producer(**settings)


@pytest.mark.parametrize("consumer", [Consumer, blocking.Consumer])
@pytest.mark.parametrize(("settings", "told"), [*CONSUMER, *ANY])
def test_a_consumer_names_the_setting_of_a_wrong_type(
    consumer: type[Consumer], settings: dict[str, Any], told: str
) -> None:
    """A consumer's setting of a wrong type is refused, with and without a group."""
    with pytest.raises(SettingError, match=re.escape(told)):
        consumer(**settings)


@pytest.mark.parametrize("consumer", [Consumer, blocking.Consumer])
@pytest.mark.parametrize(("name", "value"), OF_A_GROUP)
def test_a_setting_of_a_group_is_refused_without_one(
    consumer: type[Consumer], name: str, value: object
) -> None:
    """A setting for groups is refused without a group, because it would have no effect."""
    with pytest.raises(SettingError, match=f"^{name}=.* is not allowed: .*without a group"):
        consumer(**{name: value})  # type: ignore[arg-type]


def test_a_producer_takes_all_settings_at_once() -> None:
    """A producer accepts all settings together, and milliseconds as integers or fractions."""
    for linger_ms in (0, 5, 0.5):
        Producer(
            ["http://a:1"],
            acks=-1,
            linger_ms=linger_ms,
            batch_bytes=1,
            columnar_batch_bytes=1,
            buffer_bytes=1,
            request_bytes_max=1,
            requests_in_flight_max=1,
            retries_max=0,
            idempotence=True,
            name="one",
        )


def test_a_consumer_takes_the_settings_of_a_group_with_one() -> None:
    """A consumer in a group accepts all settings for groups, and topics from any iterable."""
    sensible = {name: value for name, value in OF_A_GROUP if value not in ("yesterday", "never")}
    Consumer(group="g", topics=(name for name in ("a", "b")), **sensible)
    Consumer(start="earliest", commit="after")
