"""A connector's connection to one cluster: requests, metadata and offset lookup on one event loop.

A connector plans and reads with the classes of this package and has no `Consumer`. This module opens the connection for
these classes, so that a connector needs no module of `fairlead.connection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from fairlead.connection.metadata import MetadataCache, topic_not_found
from fairlead.connection.transport import Transport, decoded, json_call
from fairlead.credentials import TokenProvider
from fairlead.reading.offsets import OffsetLookup
from fairlead.settings import Duration, connection_of
from fairlead.tls_files import FilePath
from fairlead_api.bodies.metadata import Metadata, TopicMetadata
from fairlead_api.bodies.requests import Isolation


class ReadConnection:
    """Connection to a cluster for reads. The context manager must be entered on the event loop of all later calls."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        connect_timeout: Duration = "5s",
        request_timeout: Duration = "30s",
        retry_timeout: Duration = "60s",
        token: str | None = None,
        token_file: FilePath | None = None,
        token_provider: TokenProvider | None = None,
        allow_insecure_token: bool | None = None,
        ca_file: FilePath | None = None,
        client_cert_file: FilePath | None = None,
        client_key_file: FilePath | None = None,
        one_address: bool | None = None,
        follow_moves: bool | None = None,
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        """Create the connection; the arguments have the same meaning as for a `Consumer`. Raises `SettingError`."""
        settings = connection_of(
            bootstrap, connect=connect_timeout, request=request_timeout, retry=retry_timeout, token=token,
            token_file=token_file, token_provider=token_provider, allow_insecure_token=allow_insecure_token,
            ca_file=ca_file, client_cert_file=client_cert_file, client_key_file=client_key_file,
            one_address=one_address, follow=follow_moves,
        )  # fmt: skip
        self.transport = Transport(settings)
        self.metadata = MetadataCache(self.transport)
        self.isolation = isolation
        self.lookup = OffsetLookup(self.transport, self.metadata, isolation)

    async def __aenter__(self) -> Self:
        """Open the connection."""
        await self.transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.transport.close()

    async def topic_names(self) -> list[str]:
        """Return the names of all topics of the cluster."""
        answer = await self.transport.call(json_call("GET", "/v1/metadata", "list topics"))
        return [topic.name for topic in decoded(answer, Metadata, "metadata").topics]

    async def topics(self, names: Iterable[str], *, missing_ok: bool = False) -> Mapping[str, TopicMetadata]:
        """Return the current metadata of topics by name.

        A missing topic raises `TopicNotFoundError`; with `missing_ok`, the result leaves it out.
        """
        wanted = frozenset(names)
        if not wanted:
            return {}
        self.metadata.want(wanted)
        await self.metadata.refresh()
        found = {name: topic for name, topic in self.metadata.picture.topics.items() if name in wanted}
        if not missing_ok and (missing := sorted(wanted - found.keys())):
            raise topic_not_found(missing[0])
        return found
