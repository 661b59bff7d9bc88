from __future__ import annotations

import pytest

from fairlead_spark.option_values import OptionError
from fairlead_spark.options import READ_OPTIONS, ReadOptions
from fairlead_spark.planning.columns import DEFAULT
from fairlead_spark.planning.positions import Assign, AtTime, EachPartition, Edge, Subscribe, SubscribePattern
from refusals import raises

BASE = {"subscribe": "flights"}


def test_options_have_kafkas_names_in_any_case() -> None:
    """Options have Kafka's names in any letter case, and options that Spark adds are ignored."""
    options = ReadOptions.parse(
        {
            "bootstrap": "http://a:1/, http://b:2",
            "SUBSCRIBE": "flights",
            "startingoffsets": '{"flights": {"0": 3}}',
            "endingTimestamp": "1700000000000",
            "maxOffsetsPerTrigger": "1000",
            "minPartitions": "2",
            "maxPartitions": "4",
            "failOnDataLoss": "False",
            "includeHeaders": "true",
            "pushdown": "true",
            "groupId": "job",
            "retryTimeout": "5s",
            "oneAddress": "true",
            "followMoves": "true",
            "path": "/x",
            "checkpointLocation": "/y",
        }
    )

    assert options == ReadOptions(
        bootstrap="http://a:1,http://b:2",
        selection=Subscribe(("flights",)),
        starting=EachPartition({("flights", 0): 3}),
        ending=AtTime(1_700_000_000_000),
        rows_per_trigger_max=1000,
        tasks_min=2,
        tasks_max=4,
        fail_on_data_loss=False,
        columns=(*DEFAULT, "headers"),
        pushdown=True,
        group="job",
        retry_timeout_seconds=5.0,
        one_address=True,
        follow_moves=True,
    )


@pytest.mark.parametrize(
    ("variable", "option", "field"),
    [
        ("FAIRLEAD_ONE_ADDRESS", "oneAddress", "one_address"),
        ("FAIRLEAD_FOLLOW_MOVES", "followMoves", "follow_moves"),
    ],
)
def test_the_driver_decides_about_connections(
    monkeypatch: pytest.MonkeyPatch, variable: str, option: str, field: str
) -> None:
    """The driver's environment variable is the default of an option of the connection, and must be a boolean."""
    monkeypatch.setenv(variable, "true")
    told = getattr(ReadOptions.parse(BASE), field)
    refused_option = getattr(ReadOptions.parse({**BASE, option: "false"}), field)
    monkeypatch.setenv(variable, "perhaps")
    with pytest.raises(OptionError) as refused:
        ReadOptions.parse(BASE)

    assert (told, refused_option) == (True, False)
    assert (refused.value.name, refused.value.value) == (variable, "perhaps")


def test_defaults_are_kafkas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options, a read fails on losses, has no headers, and uses the bootstrap address of the environment."""
    monkeypatch.setenv("FAIRLEAD_BOOTSTRAP", "http://c:3")
    named = ReadOptions.parse(BASE)
    monkeypatch.delenv("FAIRLEAD_BOOTSTRAP")
    unnamed = ReadOptions.parse(BASE)

    assert named == ReadOptions(bootstrap="http://c:3", selection=Subscribe(("flights",)))
    assert unnamed.bootstrap == "http://127.0.0.1:9520"


def test_kafkas_options_of_times_and_triggers_are_honoured() -> None:
    """Times for each partition, the strategy for late times, and the pace of triggers are parsed."""
    options = ReadOptions.parse(
        BASE
        | {
            "startingOffsetsByTimestamp": '{"flights": {"0": 5}}',
            "startingOffsetsByTimestampStrategy": "LATEST",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "3m",
            "maxRecordsPerPartition": "7",
        }
    )

    assert options.starting == EachPartition({("flights", 0): AtTime(5)})
    assert options.late_start is Edge.LATEST
    assert (options.rows_per_trigger_min, options.trigger_delay_seconds_max) == (10, 180.0)
    assert options.rows_per_task_max == 7


def test_topics_are_chosen_by_pattern_or_partition_too() -> None:
    """Topics are selected by name, pattern or partition."""
    assert ReadOptions.parse({"subscribePattern": "f.*"}).selection == SubscribePattern("f.*")
    assert ReadOptions.parse({"assign": '{"a": [1]}'}).selection == Assign({"a": (1,)})


def test_columns_are_those_named() -> None:
    """The `columns` option selects and orders the columns, including headers."""
    assert ReadOptions.parse(BASE | {"columns": "Offset, headers"}).columns == ("offset", "headers")


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ({}, "subscribe", "is missing; allowed: exactly one of subscribe, subscribePattern and assign"),
        (
            BASE | {"startingTimestamp": "1", "startingOffsetsByTimestamp": "{}"},
            "startingOffsetsByTimestamp",
            "only one of",
        ),
        (BASE | {"endingOffsetsByTimestamp": "1"}, "endingOffsetsByTimestamp", "in milliseconds since 1970"),
        (
            BASE | {"startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy",
            "error or latest",
        ),
        (
            BASE | {"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
            "minOffsetsPerTrigger",
            "at most maxOffsetsPerTrigger, which is 2",
        ),
        (BASE | {"maxTriggerDelay": "5"}, "maxTriggerDelay", "a number"),
        (
            BASE | {"maxRecordsPerPartition": "3", "maxPartitions": "2"},
            "maxRecordsPerPartition",
            "only without maxPartitions",
        ),
        (BASE | {"assign": "{}"}, "subscribe and assign", "exactly one of"),
        (BASE | {"startingOffset": "latest"}, "startingOffset", "nearest: startingOffsets"),
        (BASE | {"zzz": "1"}, "zzz", "the options bootstrap, subscribe"),
        (BASE | {"kafka.bootstrap.servers": "x:9092"}, "kafka.bootstrap.servers", "the option bootstrap"),
        (BASE | {"bootstrap": "x:9092"}, "bootstrap", "http://HOST:PORT"),
        (BASE | {"startingOffsets": "soon"}, "startingOffsets", "earliest, latest, or JSON"),
        (BASE | {"startingOffsets": '{"flights": 1}'}, "startingOffsets", "it has 1 for flights"),
        (
            BASE | {"startingOffsets": "latest", "startingTimestamp": "1"},
            "startingTimestamp",
            "only one of startingOffsets and startingTimestamp",
        ),
        (BASE | {"startingTimestamp": "today"}, "startingTimestamp", "a whole number, 0 or more"),
        (
            BASE | {"startingTimestamp": "253402300800000"},
            "startingTimestamp",
            "milliseconds since 1970, up to the year",
        ),
        (
            BASE | {"endingTimestamp": "1763798400000000"},
            "endingTimestamp",
            "milliseconds since 1970, up to the year",
        ),
        (BASE | {"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "a whole number, 1 or more"),
        (
            BASE | {"minPartitions": "4", "maxPartitions": "2"},
            "minPartitions",
            "at most maxPartitions, which is 2",
        ),
        (BASE | {"failOnDataLoss": "yes"}, "failOnDataLoss", "true or false"),
        (BASE | {"retryTimeout": "5"}, "retryTimeout", "a number"),
        (BASE | {"columns": "key,colour"}, "columns", "each once: key, value"),
        (BASE | {"columns": "key,KEY"}, "columns", "each once"),
        (BASE | {"columns": " "}, "columns", "each once"),
        (BASE | {"columns": "key", "includeHeaders": "true"}, "includeHeaders", "headers among the columns"),
        ({"subscribePattern": "("}, "subscribePattern", "a Python regular expression"),
    ],
)
def test_wrong_options_are_named_with_what_is_allowed(given: dict[str, str], name: str, words: str) -> None:
    """A wrong option is refused with its name, its value and the allowed values."""
    with pytest.raises(OptionError) as refused:
        ReadOptions.parse(given)

    assert refused.value.name == name
    assert words in str(refused.value) or "text with a unit" in str(refused.value)


def test_batch_and_stream_refuse_what_only_the_other_can_do() -> None:
    """A batch read from the latest or to the earliest offsets is refused, and so is a stream with an end offset."""
    fine = ReadOptions.parse(BASE)
    latest = ReadOptions.parse(BASE | {"startingOffsets": "latest"})
    never = ReadOptions.parse(BASE | {"endingOffsets": "earliest"})

    assert fine.for_batch() is fine
    assert latest.for_stream() is latest
    with raises(OptionError, "startingOffsets"):
        latest.for_batch()
    with raises(OptionError, "endingOffsets"):
        never.for_batch()
    with raises(OptionError, "endingOffsets"):
        never.for_stream()
    for name, value in (("endingTimestamp", "1"), ("endingOffsetsByTimestamp", '{"flights": {"0": 1}}')):
        with raises(OptionError, name):
            ReadOptions.parse(BASE | {name: value}).for_stream()


def test_every_option_is_described() -> None:
    """Every option has a description, its allowed values, and the kinds of read that accept it."""
    assert all(option.meaning and option.allowed and option.reads for option in READ_OPTIONS)
    assert Edge.EARLIEST in READ_OPTIONS[4].allowed
