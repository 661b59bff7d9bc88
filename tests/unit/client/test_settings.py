"""Validation of settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fairlead.errors import SettingError
from fairlead.settings import (
    Backoff,
    ConsumerSettings,
    OffsetPolicy,
    ProducerSettings,
    acks_of,
    bootstrap_of,
    codec_of,
    policy_of,
    seconds_of,
)
from fairlead_api.batch.header import Codec
from fairlead_api.identifiers import Acks
from refusals import raises


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30s", 30.0),
        ("250ms", 0.25),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("10us", 1e-5),
        ("1.5 s", 1.5),
        ("0s", 0.0),
    ],
)
def test_durations_are_read_with_their_unit(value: str, seconds: float) -> None:
    """A duration that is given as text must have a unit."""
    assert seconds_of(value, "t") == pytest.approx(seconds)


def test_durations_may_be_timedeltas() -> None:
    """A duration may be a timedelta."""
    assert seconds_of(timedelta(milliseconds=5), "t") == pytest.approx(0.005)


@pytest.mark.parametrize("value", [30, 1.5, "30", "s", "-1s", "1 week", "", None, timedelta(seconds=-1)])
def test_durations_without_a_unit_are_refused_by_name(value: object) -> None:
    """A duration without a unit, or of a wrong type, is refused, and the error names the setting."""
    with raises(SettingError, "delivery_timeout") as refused:
        seconds_of(value, "delivery_timeout")  # type: ignore[arg-type]

    assert refused.value.value == value
    assert isinstance(refused.value, ValueError)


def test_bootstrap_takes_text_and_lists() -> None:
    """Bootstrap addresses are given as a comma-separated text or a list, in which a repeated address counts once."""
    assert bootstrap_of("http://a:1/, http://b:2,http://a:1") == ("http://a:1", "http://b:2")
    assert bootstrap_of(["https://a:1"]) == ("https://a:1",)


@pytest.mark.parametrize(
    "value",
    [
        "", "a:9520", "kafka://a:1", "http://a:1/path", "http://", [], "http://a:1?x=1",
        "http://a:65536", "http://a:0", "http://a:x", "http://[::1", "http://a:1#x", "http://a b:1", "http://a\t:1",
    ],
)  # fmt: skip
def test_bootstrap_refuses_what_is_no_address(value: str | list[str]) -> None:
    """A bootstrap address with a path, an unknown scheme or an invalid port is refused."""
    with raises(SettingError, "bootstrap"):
        bootstrap_of(value)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("a:9520", "; did you mean http://a:9520?"), ("a", ""), ("a:99999", ""), ("kafka://a:1", ""),
        ("http:/a:1", ""), ("a b:1", ""), ("[::1]:9520", "; did you mean http://[::1]:9520?"),
        ("http://a:1/v1/topics", "; did you mean http://a:1?"), ("https://a#x", "; did you mean https://a?"),
        ("::1:9520", "; did you mean http://[IPV6-ADDRESS]:PORT?"),
        ("https://::1", "; did you mean https://[IPV6-ADDRESS]:PORT?"),
    ],
)  # fmt: skip
def test_an_address_without_scheme_is_refused_with_the_right_form(value: str, meant: str) -> None:
    """A bootstrap address in a wrong form is refused, and the error suggests the right form if possible."""
    with pytest.raises(SettingError) as refused:
        bootstrap_of(value)

    assert str(refused.value).endswith(f"several separated by commas{meant}")


def test_acks_are_read_as_kafka_writes_them() -> None:
    """The values of acks are 0, 1, all and -1, as in Kafka."""
    assert [acks_of(value) for value in (0, "0", 1, "1", "all", -1, Acks.LEADER)] == [
        Acks.NONE, Acks.NONE, Acks.LEADER, Acks.LEADER, Acks.ALL, Acks.ALL, Acks.LEADER,
    ]  # fmt: skip
    with raises(SettingError, name="acks", value=2):
        acks_of(2)


def test_codecs_and_policies_are_read_by_name() -> None:
    """Codecs and offset policies are given by name, and the refusal of an unknown name lists the known names."""
    assert codec_of("zstd") is Codec.ZSTD
    assert codec_of(Codec.NONE) is Codec.NONE
    assert policy_of("latest", "offset_policy").value == "latest"
    with raises(SettingError, "lz4"):
        codec_of("snappy")
    assert policy_of("none", "offset_policy") is OffsetPolicy.ERROR
    assert policy_of("90s", "offset_policy") == timedelta(seconds=90)
    with raises(SettingError, name="offset_policy", value="sometimes"):
        policy_of("sometimes", "offset_policy")


@pytest.mark.parametrize("value", ["99999999999999h", "9" * 400 + "s"])
def test_a_policy_of_a_span_that_no_clock_knows_is_refused_by_name(value: str) -> None:
    """An offset policy whose duration exceeds a timedelta or a float is refused, and the error names the setting."""
    with raises(SettingError, name="start") as refused:
        policy_of(value, "start")

    assert refused.value.value == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_bytes", 0), ("linger_seconds", -1.0), ("buffer_bytes", 0), ("requests_in_flight_max", 0),
        ("delivery_timeout_seconds", 0.0), ("retries_max", -1), ("request_bytes_max", 0), ("columnar_batch_bytes", 0),
    ],
)  # fmt: skip
def test_producer_settings_that_make_no_sense_are_refused(field: str, value: object) -> None:
    """Invalid producer settings are refused when they are built."""
    with pytest.raises(SettingError):
        ProducerSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field",
    [
        "fetch_bytes_min",
        "fetch_bytes_max",
        "partition_fetch_bytes_max",
        "prefetch_bytes",
        "requests_in_flight_max",
    ],
)
def test_consumer_settings_that_make_no_sense_are_refused(field: str) -> None:
    """Invalid consumer settings are refused when they are built."""
    with raises(SettingError, name=field):
        ConsumerSettings(**{field: 0})  # type: ignore[arg-type]


def test_pauses_double_up_to_their_limit() -> None:
    """Pauses double up to a limit, and half of each pause is random."""
    backoff = Backoff(0.1, 1.0)

    assert [backoff.seconds(attempts, 1.0) for attempts in (1, 2, 3, 4, 5, 1000)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    )
    assert backoff.seconds(1, 0.0) == pytest.approx(0.05)


def test_pauses_follow_the_server_where_it_asks_for_more() -> None:
    """A pause is at least as long as `Retry-After`."""
    assert Backoff(0.1, 1.0).seconds(1, 0.5, advice_seconds=7.0) == 7.0
