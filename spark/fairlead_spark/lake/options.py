"""What a user may say about a table, checked once into values that cannot be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from fairlead_spark.lake.storage import local_folder
from fairlead_spark.options import Option, OptionError, known_options, take_number

if TYPE_CHECKING:
    from collections.abc import Mapping

Codec = Literal["zstd", "snappy", "lz4", "gzip", "none"]
COMPRESSIONS: Final[dict[str, Codec]] = {codec: codec for codec in get_args(Codec)}
STORAGE_PREFIX = "storage."
PATH_FORM = "an absolute folder, or a URI such as s3://BUCKET/TABLE"

LAKE_OPTIONS: Final = (
    Option("path", PATH_FORM, "", "where the table is; the first commit makes it"),
    Option(
        "partitionBy",
        "columns of the frame, several by comma",
        "none",
        "the columns whose values make partitions; a table keeps those it was made with",
    ),
    Option(
        "compression", ", ".join(f"`{codec}`" for codec in COMPRESSIONS), "`zstd`", "how files are compressed"
    ),
    Option(
        f"{STORAGE_PREFIX}NAME",
        "what deltalake takes for the store, as `storage.AWS_REGION`",
        "the environment",
        "an option of the object store, for the log and the files alike",
    ),
    Option("txnAppId", "a name", "", "a batch write's own, to recognise its repetition", "batch"),
    Option(
        "txnVersion",
        "a whole number, which grows with every write",
        "",
        "the write of `txnAppId`; one that the table has already is passed over",
        "batch",
    ),
)


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """Where a table is and how its files are written."""

    path: str
    """Absolute path of a folder that driver and tasks share, or URI of an object store (`s3://bucket/table`)."""
    partition_by: tuple[str, ...] = ()
    """Columns of the frame whose values make partitions; their order is part of the table.

    Spark's `partitionBy()` does not reach a sink in Python.
    """
    compression: Codec = "zstd"
    """Compression codecs of the Parquet files; every reader supports each of them."""
    storage: tuple[tuple[str, str], ...] = ()
    """Options of the object store, as deltalake names them, in lower case."""
    application: tuple[str, int] | None = None
    """For a batch write: application id and version, as Delta's own `txnAppId` and `txnVersion`."""

    @property
    def storage_options(self) -> dict[str, str]:
        """Return the options of the object store."""
        return dict(self.storage)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LakeOptions:
        """Return what the options of a read or write mean. Raises `OptionError`, which names option and values."""
        of_store = {name for name in given if name.lower().startswith(STORAGE_PREFIX)}
        storage = {name[len(STORAGE_PREFIX) :].lower(): given[name] for name in of_store}
        rest = {name: value for name, value in given.items() if name not in of_store}
        options = known_options(rest, LAKE_OPTIONS)
        return cls(
            path=take_path(options),
            partition_by=take_columns(options),
            compression=take_compression(options),
            storage=tuple(sorted(storage.items())),
            application=take_application(options),
        )


def take_path(options: Mapping[str, str]) -> str:
    """Return where the table is, without a slash at the end. Raises `OptionError`."""
    path = options.get("path", "").rstrip("/")
    folder = local_folder(path) if path else None
    if not path or (folder is not None and not folder.is_absolute()):
        raise OptionError("path", path, f"{PATH_FORM}; driver and tasks each run in a folder of their own")
    return path if folder is None else str(folder)


def take_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns to partition by, none when the option is missing. Raises `OptionError`."""
    text = options.get("partitionBy", "")
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if len(set(names)) < len(names):
        raise OptionError("partitionBy", text, "each column once")
    return names


def take_compression(options: Mapping[str, str]) -> Codec:
    """Return the codec of the files. Raises `OptionError`."""
    codec = options.get("compression", "zstd").lower()
    if codec not in COMPRESSIONS:
        raise OptionError("compression", codec, ", ".join(COMPRESSIONS))
    return COMPRESSIONS[codec]


def take_application(options: Mapping[str, str]) -> tuple[str, int] | None:
    """Return application and version of a batch write, or None. Raises `OptionError`."""
    name, version = options.get("txnAppId"), take_number(options, "txnVersion", least=0)
    if name is None and version is None:
        return None
    if not name or version is None:
        raise OptionError(
            "txnAppId" if name else "txnVersion", name or version, "both txnAppId and txnVersion, or none"
        )
    return name, version
