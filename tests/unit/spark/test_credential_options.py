"""Options that name the caller are parsed alike for reads and writes, and kept out of representations and catalogs."""

from __future__ import annotations

import pytest

from fairlead_spark.catalog_tables import table_schema
from fairlead_spark.credential_options import NO_CREDENTIALS, CredentialOptions
from fairlead_spark.option_values import OptionError
from fairlead_spark.options import ReadOptions, take_credentials
from fairlead_spark.sink.write_options import WriteOptions

FILES = {
    "tokenFile": "/t",
    "caFile": "/a",
    "clientCertFile": "/c",
    "clientKeyFile": "/k",
    "allowInsecureToken": "true",
}


def test_reads_and_writes_take_the_same_options() -> None:
    """Reads and writes have the same credential options, which become arguments of the SDK's clients."""
    read = ReadOptions.parse({"subscribe": "flights", **FILES}).credentials
    write = WriteOptions.parse(FILES).credentials

    assert read == write
    assert read.arguments() == {
        "token": None,
        "token_file": "/t",
        "allow_insecure_token": True,
        "ca_file": "/a",
        "client_cert_file": "/c",
        "client_key_file": "/k",
    }
    assert ReadOptions.parse({"subscribe": "flights"}).credentials == NO_CREDENTIALS


def test_a_token_stands_in_no_representation() -> None:
    """Credentials with different tokens are different, but no repr shows the token."""
    options = ReadOptions.parse({"subscribe": "flights", "token": "secret"})

    assert "secret" not in repr(options)
    assert options.credentials != CredentialOptions(token="other")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"token": "secret", "tokenFile": "/t"}, "token"),
        ({"clientCertFile": "/c"}, "clientKeyFile"),
        ({"clientKeyFile": "/k"}, "clientCertFile"),
        ({"allowInsecureToken": "perhaps"}, "allowInsecureToken"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], named: str) -> None:
    """The error for contradictory credential options names an option and does not contain the token."""
    with pytest.raises(OptionError) as refused:
        take_credentials(given)

    assert refused.value.name == named
    assert "secret" not in str(refused.value)


def test_a_catalog_stores_no_token() -> None:
    """A table of the catalog may have the option tokenFile but not token, because the catalog stores the options."""
    pytest.importorskip("pyspark")
    table_schema({"subscribe": "flights", "tokenFile": "/t"})
    with pytest.raises(OptionError) as refused:
        table_schema({"subscribe": "flights", "TOKEN": "secret"})

    assert "secret" not in str(refused.value)
