"""Tokens, ACLs and addresses with TLS in the metadata of the cluster."""

from __future__ import annotations

from fairlead_api.access_needs import Kind
from fairlead_api.identifiers import Revision, TimestampUs
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import Addresses, encode
from fairlead_broker.registry.security_records import AclRecord, QuotaRecord, TokenRecord
from fairlead_broker.registry.store_writes import KeyValue

KEYS = Keys("test")


def test_tokens_and_acls_are_in_the_metadata() -> None:
    """The metadata contains the token, the ACL and the quota of an applied revision, by id and by subject."""
    token = TokenRecord(
        principal="user:ann", secret_sha256="0" * 64, created_us=TimestampUs(1), created_by="user:root"
    )
    acl = AclRecord(
        effect="allow",
        principal="user:ann",
        operations=("read",),
        kind=Kind.TOPIC,
        pattern="*",
        created_us=TimestampUs(1),
        created_by="user:root",
    )
    quota = QuotaRecord(shared={"requests_per_second": 5}, changed_us=TimestampUs(1), changed_by="user:root")
    metadata = ClusterMetadata(KEYS)
    records = {KEYS.token("t1"): token, KEYS.acl("a1"): acl, KEYS.quota("user:a*"): quota}
    metadata.apply(
        Revision(1),
        {key: KeyValue(key, encode(record), Revision(1), Revision(1)) for key, record in records.items()},
    )

    assert metadata.tokens["t1"].value == token
    assert metadata.acls["a1"].value == acl
    assert metadata.quotas["user:a*"].value == quota


def test_addresses_follow_the_scheme_of_the_client() -> None:
    """A client gets the address with its own scheme, or no address."""
    both = Addresses(data="h:1", peer="h:2", ops="h:3", data_tls="h:4")
    closed = Addresses(data="", peer="h:2", ops="h:3", data_tls="h:4")

    assert (both.any_data, closed.any_data) == ("h:1", "h:4")
    assert (both.data_url("http"), both.data_url("https")) == ("http://h:1", "https://h:4")
    assert closed.data_url("http") is None
