"""Connections of a broker to the sources of all links, opened at first use and renewed when credentials change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlead_api.bodies.metadata import Versions
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.link_records import LinkRecord, LinkSource
from fairlead_broker.sources.credentials import SourceCredentials, read_credentials
from fairlead_broker.sources.source_cluster import SourceCluster, SourceUnreachable


@dataclass(frozen=True, slots=True)
class _Open:
    source: LinkSource
    credentials: SourceCredentials
    cluster: SourceCluster


class Sources:
    """Sources by link name."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: folder of the setting `link_credentials`."""
        self._folder = folder
        self._open: dict[str, _Open] = {}
        self._replaced: list[SourceCluster] = []

    def of(self, link: str, source: LinkSource) -> SourceCluster:
        """Return the connections of a link. Raises `SourceUnreachable` for certificates that TLS cannot use."""
        credentials = read_credentials(self._folder, link)
        found = self._open.get(link)
        if found is not None and (found.source, found.credentials) == (source, credentials):
            return found.cluster
        if found is not None:
            self._replaced.append(found.cluster)
        cluster = SourceCluster(source.bootstrap, credentials)
        self._open[link] = _Open(source, credentials, cluster)
        return cluster

    async def checked(self, link: str, record: LinkRecord) -> SourceCluster:
        """Return the connections of a link after checking the id of its source, and close replaced connections.

        Raises `SourceUnreachable`, the source's `ProblemError`, and `link_source_changed`.
        """
        cluster = self.of(link, record.source)
        # Calls on the newest of the replaced connections may still be in progress.
        while len(self._replaced) > 1:
            await self._replaced.pop(0).close()
        check_source(link, record.source, (await cluster.versions()).cluster_id)
        return cluster

    async def versions_at(self, link: str, bootstrap: tuple[str, ...]) -> Versions:
        """Return the answer of the cluster at addresses that a link does not use yet.

        Raises `SourceUnreachable` and the source's `ProblemError`.
        """
        cluster = SourceCluster(bootstrap, read_credentials(self._folder, link))
        try:
            return await cluster.versions()
        finally:
            await cluster.close()

    def forget(self, link: str) -> None:
        """Drop the connections of a deleted link; a later check or `close` closes them."""
        found = self._open.pop(link, None)
        if found is not None:
            self._replaced.append(found.cluster)

    async def close(self) -> None:
        """Close every connection."""
        clusters = [*self._replaced, *(each.cluster for each in self._open.values())]
        self._replaced.clear()
        self._open.clear()
        for cluster in clusters:
            await cluster.close()


def check_source(link: str, source: LinkSource, actual: str) -> None:
    """Raise `link_source_changed` if a cluster other than the source of a link answered."""
    expected = source.cluster_id
    if actual != expected:
        raise ProblemError(
            "link_source_changed",
            f"cluster {actual} answers at the source of link {link}, which is cluster {expected}",
            data={"link": link, "expected": expected, "actual": actual},
        )


def unreachable(link: str, error: SourceUnreachable | ProblemError) -> ProblemError:
    """Return the problem for a call that needs the source of a link."""
    if isinstance(error, ProblemError):
        if error.code == "link_source_changed":
            return error
        reason = f"the source refused the call: {error.code}: {error.detail}"
    else:
        reason = str(error)
    return ProblemError("link_source_unreachable", f"link {link}: {reason}", data={"link": link})
