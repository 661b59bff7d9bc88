"""Credentials of a link are files that may change while the link is in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_kit import Cluster
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.registry.link_records import LinkRecord, LinkSource, NamePatterns
from fairlead_broker.sources.source_cluster import SourceUnreachable
from fairlead_broker.sources.sources import Sources
from link_kit import url


async def test_connections_with_previous_credentials_are_closed(source: Cluster, tmp_path: Path) -> None:
    """A link uses changed credentials at once, and closes connections with credentials older than the previous ones."""
    sources = Sources(tmp_path)
    token = tmp_path / "east.token"
    token.write_text("first")
    asked = LinkSource(bootstrap=(url(source),), cluster_id="")
    oldest = sources.of("east", asked)
    record = LinkRecord(
        source=LinkSource(bootstrap=asked.bootstrap, cluster_id=(await oldest.versions()).cluster_id),
        topics=NamePatterns(),
        created_us=TimestampUs(1),
        changed_us=TimestampUs(1),
    )
    used = []
    for secret in ("second", "third", "fourth"):
        token.write_text(secret)
        used.append(await sources.checked("east", record))
    for cluster in used[1:]:
        await cluster.versions()
    with pytest.raises(SourceUnreachable):
        await used[0].versions()
    with pytest.raises(SourceUnreachable):
        await oldest.versions()
    await sources.close()
