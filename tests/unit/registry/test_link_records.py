"""Records of links: their key, and their place in the metadata."""

from __future__ import annotations

from fairlead_api.identifiers import Revision, TimestampUs
from fairlead_broker.registry.keys import Keys, LinkKey
from fairlead_broker.registry.link_records import LinkRecord, LinkSource, NamePatterns
from fairlead_broker.registry.metadata import ClusterMetadata, LinkChange
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import KeyValue, LeaseId

KEYS = Keys("local")
LINK = LinkRecord(
    source=LinkSource(bootstrap=("http://east:9520",), cluster_id="c"),
    topics=NamePatterns(include=("*",)),
    created_us=TimestampUs(1),
    changed_us=TimestampUs(1),
)


def test_the_metadata_have_the_links_by_name() -> None:
    """The metadata contains a link from the write of its record until its key is deleted."""
    metadata, key = ClusterMetadata(KEYS), KEYS.link("east/1")
    item = KeyValue(key, encode(LINK), Revision(2), Revision(3), LeaseId(0))
    [appeared] = metadata.apply(Revision(3), {key: item})
    links = dict(metadata.links)
    [gone] = metadata.apply(Revision(4), {key: None})

    assert KEYS.parse(key) == LinkKey("east/1")
    assert isinstance(appeared, LinkChange)
    assert (appeared.name, links["east/1"].value) == ("east/1", LINK)
    assert isinstance(gone, LinkChange)
    assert gone.after is None
    assert not metadata.links
