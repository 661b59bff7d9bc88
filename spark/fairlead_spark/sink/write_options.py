"""Options of a write, validated and parsed into one value.

The writers on the driver use this module. Options that also exist in Kafka's sink have the same names. The SDK
validates the values, so that the sink and the SDK accept the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.errors import SettingError
from fairlead.settings import FOLLOW_MOVES_VARIABLE, ONE_ADDRESS_VARIABLE, acks_of, codec_of, seconds_of
from fairlead_api.identifiers import Acks, check_group_name, check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_spark.credential_options import NO_CREDENTIALS, CredentialOptions
from fairlead_spark.option_values import MISSING, OptionError, take_bool, take_number
from fairlead_spark.options import (
    BOOTSTRAP_VARIABLE,
    CREDENTIAL_OPTIONS,
    FOLLOW_MOVES,
    ONE_ADDRESS,
    Option,
    known_options,
    take_bootstrap,
    take_credentials,
    take_truth,
)

WRITE_OPTIONS: Final = (
    Option(
        "bootstrap",
        "`http://HOST:PORT`, separated by commas",
        f"the environment variable `{BOOTSTRAP_VARIABLE}`, else the address of a broker on this machine",
        "bootstrap brokers; one live broker is enough",
    ),
    Option("topic", "a topic's name", "", "topic of every row; without it, the column `topic` is used"),
    Option(
        "acks",
        "`all`, `1`, `0`",
        "`all`",
        "replicas that must have a record before its task succeeds: all in-sync replicas, the leader, none",
    ),
    Option("compression", "`none`, `lz4`, `zstd`", "`none`", "compression of sent and stored batches"),
    Option(
        "idempotent",
        "`true`, `false`",
        "`true` with `acks=all`",
        "whether a batch that a task sends repeatedly is stored once",
    ),
    Option(
        "exactlyOnce",
        "`true`, `false`",
        "`false`",
        "whether all rows of a micro-batch, or of a batch write, become visible together and once to readers of "
        "committed records; needs `acks=all`",
    ),
    Option(
        "transactionTimeout",
        'a duration such as `"10m"`',
        '`"10m"`',
        "with `exactlyOnce`: time after which the cluster aborts the records of a killed task or driver; a write must "
        "be committed within this time",
    ),
    Option(
        "txnAppId",
        "a name",
        "",
        "with `exactlyOnce`: id of a sequence of batch writes, which identifies a repeated write",
        "batch",
    ),
    Option(
        "txnVersion",
        "a whole number that increases with every write",
        "",
        "number of the write of `txnAppId`; a number that was already committed is skipped",
        "batch",
    ),
    Option(
        "deliveryTimeout",
        'a duration such as `"2m"`',
        '`"2m"`',
        "time for which a batch is retried before its task fails",
    ),
    Option(
        "batchBytes",
        "a whole number, 1024 or more",
        "`4194304`",
        "payload of the largest batches, before compression; a topic with a lower `max.message.bytes` gets smaller "
        "batches",
    ),
    ONE_ADDRESS,
    FOLLOW_MOVES,
    *CREDENTIAL_OPTIONS,
)

BATCH_BYTES: Final = 4 << 20
"""Default of `batchBytes`, which is four times the default of the SDK, since a task has many rows at once and latency
does not matter. A batch of any size costs a worker and a broker about half a millisecond each."""
BATCH_BYTES_MIN: Final = 1024
TRANSACTION_TIMEOUT: Final = "10m"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write, as small plain values, since every task gets a copy."""

    bootstrap: str
    topic: str | None
    """Topic of all rows; None means that the column `topic` contains the topic of each row."""
    acks: str
    compression: str
    idempotent: bool
    delivery_timeout: str
    """Maximum duration, with a unit, from the first attempt to the acknowledgement; a task fails if a record takes
    longer."""
    batch_bytes: int
    """Payload bytes at which rows are split into batches."""
    one_address: bool = False
    follow_moves: bool = False
    exactly_once: bool = False
    transaction_timeout: str = TRANSACTION_TIMEOUT
    """Time, with a unit, after which the cluster aborts the records of a task that are not committed."""
    application: tuple[str, int] | None = None
    """Id and number of a batch write with `exactlyOnce`; None if a repetition of the write is not detected."""
    credentials: CredentialOptions = NO_CREDENTIALS

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Return the options of a write. Raises `OptionError` with the option, its value and the allowed values."""
        options = known_options(given, WRITE_OPTIONS)
        topic = options.get("topic")
        if topic is not None:
            try:
                check_topic_name(topic)
            except ProblemError as problem:
                raise OptionError("topic", topic, problem.detail) from problem
        acks, compression = options.get("acks", "all"), options.get("compression", "none").lower()
        timeout = options.get("deliveryTimeout", "2m")
        try:
            level = acks_of(-1 if acks == "-1" else acks.lower())
            codec_of(compression)
            seconds_of(timeout, "deliveryTimeout")
            seconds_of(options.get("transactionTimeout", TRANSACTION_TIMEOUT), "transactionTimeout")
        except SettingError as error:
            raise OptionError(error.name, error.value, error.allowed) from error
        idempotent = take_bool(options, "idempotent", default=level is Acks.ALL)
        if idempotent and level is not Acks.ALL:
            raise OptionError(
                "idempotent", "true", f"false with acks={acks}: only acks=all recognises repeats"
            )
        exactly_once = take_bool(options, "exactlyOnce", default=False)
        if exactly_once and not idempotent:
            raise OptionError("exactlyOnce", "true", f"false with acks={acks} or idempotent=false")
        one_address = take_truth(options, ONE_ADDRESS, ONE_ADDRESS_VARIABLE)
        follow_moves = take_truth(options, FOLLOW_MOVES, FOLLOW_MOVES_VARIABLE)
        if exactly_once and follow_moves:
            raise OptionError(
                "followMoves", "true", "false with exactlyOnce, whose transactions stay in one cluster"
            )
        transaction_timeout = options.get("transactionTimeout", TRANSACTION_TIMEOUT)
        batch_bytes = take_number(options, "batchBytes", least=BATCH_BYTES_MIN) or BATCH_BYTES
        return cls(
            take_bootstrap(options), topic, level.value, compression, idempotent, timeout, batch_bytes,
            one_address, follow_moves, exactly_once, transaction_timeout,
            _application(options, exactly_once=exactly_once), take_credentials(options),
        )  # fmt: skip


def _application(options: Mapping[str, str], *, exactly_once: bool) -> tuple[str, int] | None:
    name, version = options.get("txnAppId"), take_number(options, "txnVersion", least=0)
    if name is None and version is None:
        return None
    if not exactly_once:
        raise OptionError(
            "txnAppId" if name is not None else "txnVersion", name or str(version), "with exactlyOnce=true"
        )
    if name is None or version is None:
        missing = "txnAppId" if name is None else "txnVersion"
        raise OptionError(missing, MISSING, "txnAppId and txnVersion, or neither")
    try:
        check_group_name(f"spark.{name}")
    except ProblemError as problem:
        raise OptionError("txnAppId", name, problem.detail) from problem
    return name, version
