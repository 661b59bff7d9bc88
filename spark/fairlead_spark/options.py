"""Options of a read, named as in Kafka's source, each with its meaning, default and allowed values.

Options are parsed once into `ReadOptions`, so that other code never handles options as text. Write options are parsed
with the functions of `option_values` as well. The reference page is generated from `READ_OPTIONS`. The module must not
depend on Spark.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

from fairlead.errors import SettingError
from fairlead.settings import (
    DEFAULT_BOOTSTRAP,
    FOLLOW_MOVES_VARIABLE,
    ONE_ADDRESS_VARIABLE,
    bootstrap_of,
    truth_of,
)
from fairlead_api.bodies.requests import Isolation
from fairlead_spark.credential_options import NO_CREDENTIALS, CredentialOptions
from fairlead_spark.option_values import HIDDEN, MISSING, OptionError, take_bool, take_number, take_seconds
from fairlead_spark.planning import columns
from fairlead_spark.planning.positions import (
    ASSIGN_FORM,
    OFFSETS_FORM,
    TIMES_FORM,
    TIMESTAMP_MS_MAX,
    AtTime,
    EachPartition,
    Edge,
    Position,
    PositionError,
    Selection,
    parse_assign,
    parse_pattern,
    parse_position,
    parse_times,
    parse_topics,
)

T = TypeVar("T")

BOOTSTRAP_VARIABLE: Final = "FAIRLEAD_BOOTSTRAP"
KAFKA_BOOTSTRAP: Final = "kafka.bootstrap.servers"
SPARKS_OWN: Final = frozenset(
    {"path", "paths", "checkpointlocation", "queryname", "outputmode", "mergeschema", "header", "source"}
)
"""Options that Spark itself adds to the options of a source or sink."""
LATE_STARTS: Final = {"error": None, "latest": Edge.LATEST}


@dataclass(frozen=True, slots=True)
class Option:
    """Description of one option for users."""

    name: str
    allowed: str
    default: str
    meaning: str
    reads: str = "batch, stream"
    """Kinds of read that support the option."""


ONE_ADDRESS: Final = Option(
    "oneAddress",
    "`true`, `false`",
    f"the environment variable `{ONE_ADDRESS_VARIABLE}` on the driver, else `false`",
    "whether every call goes to a bootstrap address, whose broker forwards calls to the leaders, for drivers and "
    "executors that cannot reach the other brokers",
)
"""Option `oneAddress` (clients that reach only bootstrap addresses), for reads and writes."""

FOLLOW_MOVES: Final = Option(
    "followMoves",
    "`true`, `false`",
    f"the environment variable `{FOLLOW_MOVES_VARIABLE}` on the driver, else `false`",
    "whether the query continues in the other cluster after a topic was handed over to that cluster, with the same "
    "credentials; the first cluster must still answer calls for metadata",
)
"""Option `followMoves` (topics that are handed over to another cluster), for reads and writes."""

_OWN_FILES: Final = "; driver and executors each read their own file"
CREDENTIAL_OPTIONS: Final = (
    Option(
        "tokenFile",
        "a path",
        "the environment variable `FAIRLEAD_TOKEN` or `FAIRLEAD_TOKEN_FILE` of each process, else "
        "`/var/run/secrets/fairlead/token` if it exists",
        f"file with the token that names the caller, read again every 30 s{_OWN_FILES}",
    ),
    Option(
        "token",
        "the text of a token",
        "",
        "the token itself, instead of `tokenFile`; Spark masks tokens in plans, and tables of the catalog refuse them",
    ),
    Option(
        "allowInsecureToken",
        "`true`, `false`",
        "the environment variable `FAIRLEAD_ALLOW_INSECURE_TOKEN` of each process, else `false`",
        "whether the token is sent to other machines without TLS",
    ),
    Option(
        "caFile",
        "a path",
        "the environment variable `FAIRLEAD_CA_FILE` of each process, else `/var/run/secrets/fairlead/ca.crt` if it "
        "exists",
        f"PEM file with the authorities that sign the brokers' certificates, for `https` addresses{_OWN_FILES}",
    ),
    Option(
        "clientCertFile",
        "a path",
        "the environment variable `FAIRLEAD_CLIENT_CERT_FILE` of each process",
        f"PEM file with a certificate, for brokers that require one{_OWN_FILES}",
    ),
    Option(
        "clientKeyFile",
        "a path",
        "the environment variable `FAIRLEAD_CLIENT_KEY_FILE` of each process",
        "PEM file with the key of `clientCertFile`",
    ),
)
"""Options for the credentials of a client, for reads and writes."""

ISOLATIONS: Final[tuple[Isolation, ...]] = get_args(Isolation)
READ_OPTIONS: Final = (
    Option(
        "bootstrap",
        "`http://HOST:PORT`, separated by commas",
        f"the environment variable `{BOOTSTRAP_VARIABLE}`, else `{DEFAULT_BOOTSTRAP}`",
        "bootstrap brokers; one live broker is enough",
    ),
    Option("subscribe", "topics, separated by commas", "", "reads all partitions of these topics"),
    Option(
        "subscribePattern",
        "a Python regular expression",
        "",
        "reads all topics whose whole name matches; a stream includes topics that are created later",
    ),
    Option("assign", ASSIGN_FORM, "", "reads these partitions"),
    Option(
        "startingOffsets",
        f"`earliest`, `latest` (stream), or {OFFSETS_FORM}; JSON must contain every partition",
        "`earliest` (batch), `latest` (stream)",
        "start of the read; a stream with a checkpoint continues from the checkpoint instead",
    ),
    Option(
        "startingTimestamp",
        "milliseconds since 1970, UTC",
        "",
        "start of the read at the first record at or after this time, instead of `startingOffsets`",
    ),
    Option(
        "startingOffsetsByTimestamp",
        TIMES_FORM,
        "",
        "start of the read as with `startingTimestamp`, with a time for each partition",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error`, `latest`",
        "`error`",
        "whether the read fails or begins at the end of a log that has no record at or after the starting time",
    ),
    Option(
        "endingOffsets",
        f"`latest`, or {OFFSETS_FORM}",
        "`latest`",
        "end of the read: the first offset that is not read",
        "batch",
    ),
    Option(
        "endingTimestamp",
        "milliseconds since 1970, UTC",
        "",
        "end of the read before the first record at or after this time, instead of `endingOffsets`; the end of the "
        "log if there is no such record",
        "batch",
    ),
    Option(
        "endingOffsetsByTimestamp",
        TIMES_FORM,
        "",
        "end of the read as with `endingTimestamp`, with a time for each partition",
        "batch",
    ),
    Option(
        "isolation",
        f"`{'`, `'.join(ISOLATIONS)}`",
        f"`{ISOLATIONS[0]}`",
        "whether records of open and aborted transactions are read; with `read_committed`, `latest` is the last stable "
        "offset",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "a whole number above 0",
        "no limit",
        "maximum number of records of one trigger, shared between the partitions",
        "stream",
    ),
    Option(
        "minOffsetsPerTrigger",
        "a whole number above 0",
        "`1`",
        "minimum number of records of one trigger; with fewer new records the query waits for `maxTriggerDelay`. The "
        "first trigger of each run and the trigger `availableNow` do not wait",
        "stream",
    ),
    Option(
        "maxTriggerDelay",
        'a duration such as `"15m"`',
        '`"15m"`',
        "maximum time between two triggers with new records while `minOffsetsPerTrigger` is not reached",
        "stream",
    ),
    Option(
        "minPartitions",
        "a whole number above 0",
        "one task for each core of the driver, or fewer for small reads",
        "minimum number of tasks of a read; partitions are split if there are fewer partitions than tasks",
    ),
    Option("maxPartitions", "a whole number above 0", "no limit", "maximum number of tasks of a read"),
    Option(
        "maxRecordsPerPartition",
        "a whole number above 0",
        "no limit",
        "maximum number of records of one task; partitions with more records are split. Not with `maxPartitions`",
    ),
    Option(
        "failOnDataLoss",
        "`true`, `false`",
        "`true`",
        "whether the query fails when expected records are missing, or logs a warning and continues",
    ),
    Option("includeHeaders", "`true`, `false`", "`false`", "adds the column `headers`"),
    Option(
        "columns",
        f"names separated by commas, out of {', '.join(f'`{name}`' for name in columns.BY_NAME)}",
        "all but `headers`",
        "columns of the read, in this order; other columns are not sent to Spark",
    ),
    Option(
        "pushdown",
        "`true`, `false`",
        "`false`",
        "restricts the read by filters on `topic`, `partition`, `offset` and `timestamp`; has no effect in Spark 4, "
        "and needs `spark.sql.python.filterPushdown.enabled=true`",
        "batch",
    ),
    Option(
        "groupId",
        "a group's name",
        "",
        "publishes the position of the query as this group's offsets when Spark commits a trigger",
        "stream",
    ),
    Option(
        "retryTimeout",
        'a duration such as `"60s"`',
        '`"60s"`',
        "time for which a call is retried while no broker answers, before the query fails",
    ),
    ONE_ADDRESS,
    FOLLOW_MOVES,
    *CREDENTIAL_OPTIONS,
)


TRIGGER_DELAY_SECONDS_MAX: Final = 15 * 60.0
"""Default of `maxTriggerDelay`, as in Kafka's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Validated options of one read."""

    bootstrap: str
    selection: Selection
    starting: Position | None = None
    """Start of the read; None for the default, which differs between batch and stream."""
    late_start: Edge | None = None
    """Start of a partition without a record at or after the starting time; None if the read fails instead."""
    ending: Position | None = None
    rows_per_trigger_max: int | None = None
    rows_per_trigger_min: int | None = None
    trigger_delay_seconds_max: float = TRIGGER_DELAY_SECONDS_MAX
    """Maximum time for which a trigger waits for `rows_per_trigger_min` records."""
    tasks_min: int | None = None
    tasks_max: int | None = None
    rows_per_task_max: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = columns.DEFAULT
    pushdown: bool = False
    group: str | None = None
    retry_timeout_seconds: float = 60.0
    one_address: bool = False
    follow_moves: bool = False
    isolation: Isolation = "read_uncommitted"
    credentials: CredentialOptions = NO_CREDENTIALS

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Parse the options that Spark passes. Raises `OptionError`."""
        options = known_options(given, READ_OPTIONS)
        tasks_min = take_number(options, "minPartitions")
        tasks_max = take_number(options, "maxPartitions")
        if tasks_min is not None and tasks_max is not None and tasks_min > tasks_max:
            raise OptionError("minPartitions", tasks_min, f"at most maxPartitions, which is {tasks_max}")
        rows_per_task_max = take_number(options, "maxRecordsPerPartition")
        if rows_per_task_max is not None and tasks_max is not None:
            raise OptionError("maxRecordsPerPartition", rows_per_task_max, "only without maxPartitions")
        rows_max, rows_min = (take_number(options, f"{edge}OffsetsPerTrigger") for edge in ("max", "min"))
        if rows_max is not None and rows_min is not None and rows_min > rows_max:
            raise OptionError(
                "minOffsetsPerTrigger", rows_min, f"at most maxOffsetsPerTrigger, which is {rows_max}"
            )
        return cls(
            bootstrap=take_bootstrap(options),
            selection=_take_selection(options),
            starting=_take_position(options, "starting"),
            late_start=_take_late_start(options),
            ending=_take_position(options, "ending"),
            rows_per_trigger_max=rows_max,
            rows_per_trigger_min=rows_min,
            trigger_delay_seconds_max=take_seconds(
                options, "maxTriggerDelay", default=TRIGGER_DELAY_SECONDS_MAX
            ),
            tasks_min=tasks_min,
            tasks_max=tasks_max,
            rows_per_task_max=rows_per_task_max,
            fail_on_data_loss=take_bool(options, "failOnDataLoss", default=True),
            columns=_take_columns(options),
            pushdown=take_bool(options, "pushdown", default=False),
            group=options.get("groupId"),
            retry_timeout_seconds=take_seconds(options, "retryTimeout", default=60.0),
            one_address=take_truth(options, ONE_ADDRESS, ONE_ADDRESS_VARIABLE),
            follow_moves=take_truth(options, FOLLOW_MOVES, FOLLOW_MOVES_VARIABLE),
            isolation=_take_isolation(options),
            credentials=take_credentials(options),
        )

    def for_batch(self) -> ReadOptions:
        """Return the options for a batch read. Raises `OptionError` for values that only a stream supports."""
        if self.starting is Edge.LATEST:
            raise OptionError(
                "startingOffsets",
                "latest",
                "earliest or JSON, because a batch read from latest would be empty",
            )
        if self.ending is Edge.EARLIEST:
            raise OptionError(
                "endingOffsets", "earliest", "latest or JSON, because a batch read to earliest would be empty"
            )
        return self

    def for_stream(self) -> ReadOptions:
        """Return the options for a stream. Raises `OptionError` for values that only a batch read supports."""
        if self.ending is not None:
            allowed = "none for a stream, which does not end; use the trigger availableNow, or a batch read"
            raise OptionError(option_of(self.ending, "ending"), "given", allowed)
        return self


def known_options(given: Mapping[str, str], known: Iterable[Option]) -> dict[str, str]:
    """Return the options under their documented names; names are matched regardless of case. Raises `OptionError`."""
    names = {option.name.lower(): option.name for option in known}
    options: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered in names:
            options[names[lowered]] = value
        elif lowered == KAFKA_BOOTSTRAP:
            raise OptionError(name, value, "the option bootstrap, with addresses such as http://HOST:9520")
        elif lowered not in SPARKS_OWN:
            nearest = difflib.get_close_matches(lowered, names, n=1)
            meant = f"; nearest: {names[nearest[0]]}" if nearest else ""
            raise OptionError(name, HIDDEN, f"the options {', '.join(names.values())}{meant}")
    return options


def take_bootstrap(options: Mapping[str, str]) -> str:
    """Return the bootstrap addresses."""
    text = options.get("bootstrap") or os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    try:
        return ",".join(bootstrap_of(text))
    except SettingError as error:
        raise OptionError("bootstrap", error.value, error.allowed) from None


def _take_isolation(options: Mapping[str, str]) -> Isolation:
    given = options.get("isolation", ISOLATIONS[0]).lower()
    for isolation in ISOLATIONS:
        if given == isolation:
            return isolation
    raise OptionError("isolation", given, " or ".join(ISOLATIONS))


def take_truth(options: Mapping[str, str], option: Option, variable: str) -> bool:
    """Return a boolean option of the connection, whose default is a variable of the driver's environment."""
    try:
        default = truth_of(None, option.name, variable)
    except SettingError as error:
        raise OptionError(variable, error.value, error.allowed) from None
    return take_bool(options, option.name, default=default)


def take_credentials(options: Mapping[str, str]) -> CredentialOptions:
    """Return the source of the token and the TLS files; each process reads the files itself."""
    if "token" in options and "tokenFile" in options:
        raise OptionError("token", HIDDEN, "at most one of token and tokenFile")
    for given, lacking in (("clientCertFile", "clientKeyFile"), ("clientKeyFile", "clientCertFile")):
        if given in options and lacking not in options:
            raise OptionError(lacking, MISSING, f"a path, together with {given}")
    insecure = None
    if "allowInsecureToken" in options:
        insecure = take_bool(options, "allowInsecureToken", default=False)
    return CredentialOptions.of(options, allow_insecure_token=insecure)


def _take_selection(options: Mapping[str, str]) -> Selection:
    parsers: dict[str, Callable[[str], Selection]] = {
        "subscribe": parse_topics,
        "subscribePattern": parse_pattern,
        "assign": parse_assign,
    }
    given = [name for name in parsers if name in options]
    if len(given) != 1:
        allowed = "exactly one of subscribe, subscribePattern and assign"
        raise OptionError(" and ".join(given) or "subscribe", HIDDEN if given else MISSING, allowed)
    name = given[0]
    forms = {"subscribe": "topics, separated by commas", "subscribePattern": "a Python regular expression"}
    return _parsed(options, name, parsers[name], forms.get(name, ASSIGN_FORM))


def option_of(position: Position, edge: str) -> str:
    """Return the option that gives a position; `edge` is `starting` or `ending`."""
    if isinstance(position, AtTime):
        return f"{edge}Timestamp"
    by_time = isinstance(position, EachPartition) and any(
        isinstance(each, AtTime) for each in position.offsets.values()
    )
    return f"{edge}OffsetsByTimestamp" if by_time else f"{edge}Offsets"


def _take_position(options: Mapping[str, str], edge: str) -> Position | None:
    by_offset, by_time, by_times = f"{edge}Offsets", f"{edge}Timestamp", f"{edge}OffsetsByTimestamp"
    given = [name for name in (by_offset, by_time, by_times) if name in options]
    if len(given) > 1:
        raise OptionError(given[1], options[given[1]], f"only one of {' and '.join(given)}")
    if by_time in options:
        timestamp_ms = take_number(options, by_time, least=0) or 0
        if timestamp_ms > TIMESTAMP_MS_MAX:
            raise OptionError(by_time, options[by_time], "milliseconds since 1970, up to the year 9999")
        return AtTime(timestamp_ms)
    if by_times in options:
        return _parsed(options, by_times, parse_times, TIMES_FORM)
    if by_offset not in options:
        return None
    return _parsed(options, by_offset, parse_position, f"earliest, latest, or {OFFSETS_FORM}")


def _take_late_start(options: Mapping[str, str]) -> Edge | None:
    name = "startingOffsetsByTimestampStrategy"
    strategy = options.get(name, "error").strip().lower()
    if strategy not in LATE_STARTS:
        raise OptionError(name, options[name], " or ".join(LATE_STARTS))
    return LATE_STARTS[strategy]


def _parsed(options: Mapping[str, str], name: str, parse: Callable[[str], T], form: str) -> T:
    try:
        return parse(options[name])
    except PositionError as error:
        raise OptionError(name, options[name], f"{form} (it {error})") from None


def _take_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = take_bool(options, "includeHeaders", default=False)
    text = options.get("columns")
    if text is None:
        return (*columns.DEFAULT, columns.HEADERS) if with_headers else columns.DEFAULT
    by_lowered = {name.lower(): name for name in columns.BY_NAME}
    asked = [name.strip() for name in text.split(",") if name.strip()]
    names = [by_lowered.get(name.lower(), "") for name in asked]
    if not names or "" in names or len(set(names)) < len(names):
        raise OptionError("columns", text, f"each once: {', '.join(columns.BY_NAME)}")
    if with_headers and columns.HEADERS not in names:
        raise OptionError("includeHeaders", "true", "false, or headers among the columns")
    return tuple(names)
