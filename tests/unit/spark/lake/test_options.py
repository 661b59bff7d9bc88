"""Options of a table, and the errors for wrong options."""

from __future__ import annotations

import pytest

from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.option_values import OptionError
from fairlead_spark.pipelines import PipelineOptionError, find
from refusals import raises


def test_options_of_a_store_are_kept_apart() -> None:
    """Options with the prefix `storage.` go to the store in lower case, and Spark's own options are skipped."""
    options = LakeOptions.parse(
        {
            "path": "s3://lake/flights/",
            "PARTITIONBY": "date, carrier",
            "storage.AWS_REGION": "eu-north-1",
            "Storage.aws_allow_http": "true",
            "checkpointLocation": "/checkpoints/flights",
        }
    )

    assert (options.path, options.partition_by) == ("s3://lake/flights", ("date", "carrier"))
    assert options.storage_options == {"aws_region": "eu-north-1", "aws_allow_http": "true"}
    assert (options.compression, options.application) == ("zstd", None)


def test_a_folder_may_be_a_uri() -> None:
    """A path and a URI of the same folder are the same table."""
    assert (
        LakeOptions.parse({"path": "file:///lake/a%20b"}).path
        == LakeOptions.parse({"path": "/lake/a b/"}).path
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"path": ""}, "path"),
        ({"path": "table"}, "path='table'"),
        ({"compressoin": "zstd"}, "compressoin compression"),
        (
            {"compression": "brotli"},
            "compression='brotli' zstd snappy lz4 gzip",
        ),
        ({"partitionBy": "a,b,a"}, "partitionBy='a,b,a'"),
        ({"mergeSchema": "yes"}, "mergeSchema='yes' true false"),
        ({"compactEvery": "1", "vacuumHours": "167"}, "vacuumHours='167' 168"),
        ({"vacuumHours": "168"}, "vacuumHours=168 compactEvery"),
        ({"txnAppId": "load"}, "txnAppId txnVersion"),
        ({"txnVersion": "-1"}, "txnVersion='-1' 0"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    """A wrong option is refused with its name, its value and the allowed values."""
    with raises(OptionError, *named.split()):
        LakeOptions.parse({"path": "/lake/table"} | options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topics": ","}, "topics"),
        ({"text": "maybe"}, "text='maybe' true false"),
        ({"compactEvery": "0"}, "compactEvery='0' 1"),
        ({"vacuumHours": "200"}, "compactEvery"),
        ({"storage": "AWS_REGION"}, "NAME=VALUE"),
    ],
)
def test_the_pipeline_refuses_before_spark_is_started(options: dict[str, str], named: str) -> None:
    """The pipeline refuses wrong values before Spark is started."""
    with raises(PipelineOptionError, *named.split()):
        find("topic_to_delta").complete({"topics": "flights", "path": "/lake/flights"} | options)
