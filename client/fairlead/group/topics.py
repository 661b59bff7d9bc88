"""The named topics of a group that do not exist: told once, for nothing else would show a name that is misspelt.

Asked when the group has assigned something, in a task of `group_session`. A topic that may come later is no mistake,
so that nothing is raised. Must not know heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Transport
from fairlead.errors import FairleadError
from fairlead.group.settings import GroupSettings

_LOG: Final = logging.getLogger("fairlead")


class GroupTopics:
    """The topics that a member names, and which of them are known to be missing."""

    def __init__(self, settings: GroupSettings, metadata: MetadataCache, transport: Transport) -> None:
        self._settings = settings
        self._metadata = metadata
        self._transport = transport
        self._told: set[str] = set()
        """Missing when last asked for, and told; forgotten when they are there."""

    async def look(self, assigned: Iterable[str]) -> None:
        """Warn of named topics that do not exist, each once until it is there; `assigned` are topics that do.

        Asks the cluster only about what neither the assignment nor the client's picture has.
        """
        there = {*assigned, *self._metadata.picture.topics}
        self._told -= there
        unclear = set(self._settings.topics) - there - self._told
        if not unclear:
            return
        self._metadata.want(unclear)
        try:
            await self._transport.retry(self._metadata.refresh)
        except FairleadError:
            # Heartbeats tell of a cluster that does not answer; the next assignment asks again.
            return
        picture = self._metadata.picture
        # What another look has told meanwhile is not told again.
        missing = (unclear & picture.asked) - picture.topics.keys() - self._told
        if missing:
            self._told |= missing
            _LOG.warning(
                "group %s: topics that do not exist, and are read once they do: %s",
                self._settings.group, ", ".join(sorted(missing)),
            )  # fmt: skip
