"""Options of a table, and the errors for wrong options."""

from __future__ import annotations

import pytest

from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.options import OptionError
from fairlead_spark.pipelines import PipelineOptionError, find


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
    ("options", "says"),
    [
        ({"path": ""}, "option path is missing; allowed: an absolute folder, or a URI"),
        ({"path": "table"}, "option path='table' is not allowed; allowed: an absolute folder, or a URI"),
        ({"compressoin": "zstd"}, "option compressoin is not allowed.*nearest: compression"),
        (
            {"compression": "brotli"},
            "option compression='brotli' is not allowed; allowed: zstd, snappy, lz4, gzip",
        ),
        ({"partitionBy": "a,b,a"}, "option partitionBy='a,b,a' is not allowed; allowed: each column once"),
        ({"mergeSchema": "yes"}, "option mergeSchema='yes' is not allowed; allowed: true or false"),
        ({"compactEvery": "1", "vacuumHours": "167"}, "a whole number, 168 or more"),
        ({"vacuumHours": "168"}, "only together with compactEvery"),
        ({"txnAppId": "load"}, "both txnAppId and txnVersion"),
        ({"txnVersion": "-1"}, "option txnVersion='-1' is not allowed; allowed: a whole number, 0 or more"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], says: str) -> None:
    """A wrong option is refused with its name, its value and the allowed values."""
    with pytest.raises(OptionError, match=says):
        LakeOptions.parse({"path": "/lake/table"} | options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": ","}, "needs a name in the option topics"),
        ({"text": "maybe"}, "option text='maybe'; it must be true or false"),
        ({"compactEvery": "0"}, "option compactEvery='0'; it must be a whole number, 1 or more"),
        ({"vacuumHours": "200"}, "needs the option compactEvery"),
        ({"storage": "AWS_REGION"}, "it must be NAME=VALUE pairs separated by commas"),
    ],
)
def test_the_pipeline_refuses_before_spark_is_started(options: dict[str, str], says: str) -> None:
    """The pipeline refuses wrong values before Spark is started."""
    with pytest.raises(PipelineOptionError, match=says):
        find("topic_to_delta").complete({"topics": "flights", "path": "/lake/flights"} | options)
