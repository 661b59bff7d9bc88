"""Client settings of a wrong type, or without any effect, are refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from fairlead import Consumer, Producer, blocking
from fairlead.errors import SettingError
from refusals import raises

PRODUCER: list[tuple[dict[str, Any], str]] = [
    ({"linger_ms": "5ms"}, "linger_ms"),
    ({"linger_ms": None}, "linger_ms"),
    ({"linger_ms": True}, "linger_ms"),
    ({"linger_ms": -1}, "linger_ms"),
    ({"linger_ms": timedelta(milliseconds=5)}, "linger_ms"),
    ({"batch_bytes": "1k"}, "batch_bytes"),
    ({"batch_bytes": 1.5}, "batch_bytes"),
    ({"batch_bytes": True}, "batch_bytes"),
    ({"columnar_batch_bytes": "1k"}, "columnar_batch_bytes"),
    ({"buffer_bytes": "1k"}, "buffer_bytes"),
    ({"buffer_bytes": 0}, "buffer_bytes"),
    ({"buffer_bytes": -5, "batch_bytes": 0}, "batch_bytes"),
    ({"request_bytes_max": "x"}, "request_bytes_max"),
    ({"requests_in_flight_max": "5"}, "requests_in_flight_max"),
    ({"retries_max": "x"}, "retries_max"),
    ({"retries_max": False}, "retries_max"),
    ({"idempotence": "no"}, "idempotence"),
    ({"idempotence": 0}, "idempotence"),
    ({"name": 5}, "name"),
    ({"acks": None}, "acks"),
    ({"compression": 5}, "compression"),
    ({"follow_moves": "yes"}, "follow_moves"),
]
CONSUMER: list[tuple[dict[str, Any], str]] = [
    ({"fetch_bytes_min": "x"}, "fetch_bytes_min"),
    ({"fetch_bytes_max": 4e6}, "fetch_bytes_max"),
    ({"partition_fetch_bytes_max": None}, "partition_fetch_bytes_max"),
    ({"prefetch_bytes": "x"}, "prefetch_bytes"),
    ({"fetch_wait_max": 5}, "fetch_wait_max"),
    ({"offset_policy": 5}, "offset_policy"),
    ({"follow_moves": "yes"}, "follow_moves"),
    ({"group": 5, "topics": "a"}, "group"),
    ({"group": "g", "topics": 5}, "topics"),
    ({"group": "g", "topics": ["a", 5]}, "topics"),
    ({"group": "g", "topics": b"a"}, "topics"),
    ({"group": "g", "pattern": 5}, "pattern"),
    ({"group": "g", "topics": "a", "instance_id": 5}, "instance_id"),
    ({"group": "g", "topics": "a", "rack": 5}, "rack"),
    ({"group": "g", "topics": "a", "assignor": ["range"]}, "assignor"),
    ({"group": "g", "topics": "a", "commit": ["after"]}, "commit"),
    ({"group": "g", "topics": "a", "start": 5}, "start"),
    ({"group": "g", "topics": "a", "on_assigned": "f"}, "on_assigned"),
    ({"group": "g", "topics": "a", "on_revoked": 5}, "on_revoked"),
]
ANY: list[tuple[dict[str, Any], str]] = [
    ({"one_address": "yes"}, "one_address"),
    ({"bootstrap": 5}, "bootstrap"),
    ({"bootstrap": None}, "bootstrap"),
    ({"bootstrap": b"http://a:1"}, "bootstrap"),
    ({"bootstrap": ["http://a:1", 5]}, "bootstrap"),
    ({"request_timeout": 5}, "request_timeout"),
]
OF_A_GROUP: list[tuple[str, Any]] = [
    ("start", "latest"), ("start", "yesterday"), ("commit", "manual"), ("commit", "never"),
    ("auto_commit_interval", "1s"), ("on_assigned", print), ("on_revoked", print), ("processing_timeout", "1m"),
    ("session_timeout", "10s"), ("rebalance_timeout", "1m"), ("instance_id", "one"), ("rack", "r1"),
    ("assignor", "range"),
]  # fmt: skip


@pytest.mark.parametrize("producer", [Producer, blocking.Producer])
@pytest.mark.parametrize(("settings", "name"), [*PRODUCER, *ANY])
def test_a_producer_names_the_setting_of_a_wrong_type(
    producer: type[Producer], settings: dict[str, Any], name: str
) -> None:
    """A producer's setting of a wrong type is refused with its name, its value and the allowed values."""
    with raises(SettingError, name=name):
        producer(**settings)


@pytest.mark.parametrize("consumer", [Consumer, blocking.Consumer])
@pytest.mark.parametrize(("settings", "name"), [*CONSUMER, *ANY])
def test_a_consumer_names_the_setting_of_a_wrong_type(
    consumer: type[Consumer], settings: dict[str, Any], name: str
) -> None:
    """A consumer's setting of a wrong type is refused, with and without a group."""
    with raises(SettingError, name=name):
        consumer(**settings)


@pytest.mark.parametrize("consumer", [Consumer, blocking.Consumer])
@pytest.mark.parametrize(("name", "value"), OF_A_GROUP)
def test_a_setting_of_a_group_is_refused_without_one(
    consumer: type[Consumer], name: str, value: object
) -> None:
    """A setting for groups is refused without a group, because it would have no effect."""
    with raises(SettingError, name=name):
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
