from __future__ import annotations

import pytest

from fairlead_spark.option_values import OptionError
from fairlead_spark.sink.write_options import WriteOptions
from refusals import raises

ADDRESS = "http://127.0.0.1:9520"


def test_without_options_every_in_sync_replica_has_each_record_once_a_task() -> None:
    """With acks=all a writer is idempotent by default; with fewer acks it is not."""
    plain = WriteOptions.parse({"bootstrap": ADDRESS})
    given = {"TOPIC": "flights", "acks": "1", "compression": "ZSTD", "batchBytes": "65536"}
    quick = WriteOptions.parse({"bootstrap": ADDRESS, **given})

    assert plain == WriteOptions(ADDRESS, None, "all", "none", True, "2m", 4 << 20)
    assert quick == WriteOptions(ADDRESS, "flights", "1", "zstd", False, "2m", 65_536)
    assert WriteOptions.parse({"bootstrap": ADDRESS, "acks": "-1"}) == plain
    assert WriteOptions.parse({"bootstrap": ADDRESS, "oneAddress": "true"}).one_address
    assert WriteOptions.parse({"bootstrap": ADDRESS, "followMoves": "true"}).follow_moves


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("acks", "2", '0, 1 or "all"'),
        ("compression", "snappy", '"none", "lz4" or "zstd"'),
        ("deliveryTimeout", "30", "text with a unit"),
        ("batchBytes", "4m", "a whole number, 1024 or more"),
        ("batchBytes", "1023", "a whole number, 1024 or more"),
        ("idempotent", "perhaps", "true or false"),
        ("exactlyOnce", "perhaps", "true or false"),
        ("transactionTimeout", "30", "text with a unit"),
        ("txnAppId", "load", "with exactlyOnce=true"),
        ("topic", "no such name", "topic"),
        ("bootstrap", "127.0.0.1:9520", "http://HOST:PORT"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(name: str, value: str, allowed: str) -> None:
    """A wrong option is refused with its name, its value and the allowed values."""
    with pytest.raises(OptionError) as refused:
        WriteOptions.parse({"bootstrap": ADDRESS, name: value})

    assert (refused.value.name, refused.value.value) == (name, value)
    assert allowed in str(refused.value)


def test_the_value_of_an_unknown_option_is_not_printed() -> None:
    """The value of an unknown option is not printed, because it may be a secret."""
    with raises(OptionError, "topik", "topic") as refused:
        WriteOptions.parse({"bootstrap": ADDRESS, "topik": "s3cret"})

    assert "s3cret" not in str(refused.value)


def test_an_idempotent_producer_needs_all_acknowledgements() -> None:
    """An idempotent producer with acks=1 is refused."""
    with raises(OptionError, "acks=1"):
        WriteOptions.parse({"bootstrap": ADDRESS, "acks": "1", "idempotent": "true"})


def test_exactly_once_needs_repeats_to_be_recognised() -> None:
    """A write with `exactlyOnce` is idempotent, and has both an id and a number, or neither."""
    given = {"bootstrap": ADDRESS, "exactlyOnce": "true"}
    with raises(OptionError, "exactlyOnce", "acks=1"):
        WriteOptions.parse({**given, "acks": "1"})
    with raises(OptionError, "followMoves"):
        WriteOptions.parse({**given, "followMoves": "true"})
    with raises(OptionError, "txnVersion", "txnAppId"):
        WriteOptions.parse({**given, "txnAppId": "load"})
    with raises(OptionError, "txnAppId"):
        WriteOptions.parse({**given, "txnAppId": "x" * 1000, "txnVersion": "1"})

    assert WriteOptions.parse(given).application is None
    assert WriteOptions.parse({**given, "txnAppId": "load", "txnVersion": "7"}).application == ("load", 7)
