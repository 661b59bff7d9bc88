"""Options of a write to a Delta table, validated once and parsed into values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from fairlead_spark.lake.storage import local_folder
from fairlead_spark.option_values import MISSING, OptionError, take_bool, take_number
from fairlead_spark.options import Option, known_options

if TYPE_CHECKING:
    from collections.abc import Mapping

Codec = Literal["zstd", "snappy", "lz4", "gzip", "none"]
COMPRESSIONS: Final[dict[str, Codec]] = {codec: codec for codec in get_args(Codec)}
STORAGE_PREFIX = "storage."
PATH_FORM = "an absolute folder, or a URI such as s3://BUCKET/TABLE"

VACUUM_HOURS_MIN: Final = 168
"""Minimum of `vacuumHours`, the same as in Delta: files of commits in progress must be younger."""

LAKE_OPTIONS: Final = (
    Option("path", PATH_FORM, "", "location of the table; the first commit creates it"),
    Option(
        "partitionBy",
        "columns of the frame, separated by commas",
        "none",
        "partition columns; an existing table keeps its partition columns. The method `partitionBy()` sets the option "
        "in sessions of `fairlead_spark.spark_session`, and in other sessions after "
        "`fairlead_spark.pass_partition_by(spark)`",
    ),
    Option(
        "mergeSchema",
        "`true`, `false`",
        "`false`",
        "whether columns of the frame that the table lacks are added to the table, or refused",
    ),
    Option(
        "compactEvery",
        "a whole number above 0",
        "never",
        "number of micro-batches after which the query joins small files of the table into larger ones",
        "stream",
    ),
    Option(
        "vacuumHours",
        f"a whole number, {VACUUM_HOURS_MIN} or more",
        "never",
        "age at which files that the table no longer has are deleted, at most once a day and after a compaction; older "
        "versions of the table become unreadable. Only with `compactEvery`",
        "stream",
    ),
    Option(
        "compression", ", ".join(f"`{codec}`" for codec in COMPRESSIONS), "`zstd`", "compression of the files"
    ),
    Option(
        f"{STORAGE_PREFIX}NAME",
        "an option of deltalake for the store, such as `storage.AWS_REGION`",
        "the environment",
        "an option of the object store, for both log and files",
    ),
    Option("txnAppId", "a name", "", "id of a batch write, which identifies a repeated write", "batch"),
    Option(
        "txnVersion",
        "a whole number that increases with every write",
        "",
        "version of the write of `txnAppId`; a version that the table already has is skipped",
        "batch",
    ),
)


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """Location of a Delta table, and options for its files."""

    path: str
    """Absolute path of a folder that the driver and the tasks share, or URI of an object store
    (`s3://bucket/table`)."""
    partition_by: tuple[str, ...] = ()
    """Partition columns of the data frame; the order of these columns is part of the table."""
    compression: Codec = "zstd"
    """Compression codec of the Parquet files; all readers support the allowed codecs."""
    storage: tuple[tuple[str, str], ...] = ()
    """Options of the object store, under the names that deltalake uses, in lower case."""
    merge_schema: bool = False
    """Whether columns of the data frame that the table lacks are added to the table."""
    compact_every: int | None = None
    """Number of micro-batches between two compactions; None for no compaction."""
    vacuum_hours: int | None = None
    """Age in hours at which files that the table no longer has are deleted; None for no deletion."""
    application: tuple[str, int] | None = None
    """Application id and version of a batch write, as in Delta's `txnAppId` and `txnVersion`; None if not set."""

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of the object store as a dict."""
        return dict(self.storage)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LakeOptions:
        """Return the parsed options. Raises `OptionError` with the option and its allowed values."""
        of_store = {name for name in given if name.lower().startswith(STORAGE_PREFIX)}
        storage = {name[len(STORAGE_PREFIX) :].lower(): given[name] for name in of_store}
        rest = {name: value for name, value in given.items() if name not in of_store}
        options = known_options(rest, LAKE_OPTIONS)
        compact_every = take_number(options, "compactEvery")
        vacuum_hours = take_number(options, "vacuumHours", least=VACUUM_HOURS_MIN)
        if vacuum_hours is not None and compact_every is None:
            raise OptionError("vacuumHours", vacuum_hours, "only together with compactEvery")
        return cls(
            path=take_path(options),
            partition_by=take_columns(options),
            compression=take_compression(options),
            storage=tuple(sorted(storage.items())),
            merge_schema=take_bool(options, "mergeSchema", default=False),
            compact_every=compact_every,
            vacuum_hours=vacuum_hours,
            application=take_application(options),
        )


def take_path(options: Mapping[str, str]) -> str:
    """Return the location of the table without a trailing slash. Raises `OptionError`."""
    path = options.get("path", "").rstrip("/")
    folder = local_folder(path) if path else None
    if not path or (folder is not None and not folder.is_absolute()):
        raise OptionError(
            "path", path or MISSING, f"{PATH_FORM}; the driver and the tasks run in separate folders"
        )
    return path if folder is None else str(folder)


def take_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the partition columns; empty if the option is not set. Raises `OptionError`."""
    text = options.get("partitionBy", "")
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) < len(names):
        raise OptionError("partitionBy", text, "each column once")
    return names


def take_compression(options: Mapping[str, str]) -> Codec:
    """Return the compression codec of the files. Raises `OptionError`."""
    codec = options.get("compression", "zstd").lower()
    if codec not in COMPRESSIONS:
        raise OptionError("compression", codec, ", ".join(COMPRESSIONS))
    return COMPRESSIONS[codec]


def take_application(options: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the application id and the version of a batch write; None if not set. Raises `OptionError`."""
    name, version = options.get("txnAppId"), take_number(options, "txnVersion", least=0)
    if name is None and version is None:
        return None
    if not name or version is None:
        raise OptionError(
            "txnAppId" if name else "txnVersion", name or version, "both txnAppId and txnVersion, or none"
        )
    return name, version
