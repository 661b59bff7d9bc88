"""Spark listener that publishes the position of a streaming query as the committed offsets of a consumer group.

Users' programs add the listener with `spark.streams.addListener(GroupProgress(...))`. The committed offsets make the
lag of the query visible as the lag of the group. The module must not depend on how a source reads.

Spark reports the end of every finished micro-batch to a listener in the driver. The `commit` method of a source, in
contrast, is called one micro-batch late, and never after the last micro-batch. A separate thread publishes the offsets,
since Spark calls its listeners one at a time, and an unresponsive cluster must not delay other listeners.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from fairlead import TopicPartition
from fairlead.blocking import Admin
from fairlead.errors import FairleadError
from fairlead.settings import Duration
from fairlead_spark.planning.offsets import OffsetsFormatError, StreamOffsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

LOG: Final = logging.getLogger(__name__)
CLOSE_SECONDS_MAX: Final = 10.0
"""Maximum time for which `close` waits for the last publication."""


class GroupProgress(StreamingQueryListener):
    """Publishes the end offsets of micro-batches as committed offsets of `group`, for `fairlead group lag`.

    `query` selects the query by its name (`queryName`). Without a name, all queries of the session are published, which
    is correct only if the queries read different partitions. A failed publication is logged and repeated with the next
    micro-batch, and never fails the query. The group must have no members. `retry_timeout` limits the retries of one
    publication.
    """

    def __init__(
        self, bootstrap: str, group: str, query: str | None = None, *, retry_timeout: Duration = "30s"
    ) -> None:
        self._bootstrap = bootstrap
        self._group = group
        self._query = query
        self._retry_timeout = retry_timeout
        self._changed = threading.Condition()
        self._waiting: dict[TopicPartition, int] = {}
        self._publishing = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing, since the query has not read any records yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Publish the end of the micro-batch without waiting."""
        progress = event.progress
        if self._query is None or progress.name == self._query:
            self.publish(end_offsets(progress.sources))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing, since the trigger read no records."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing, since the last micro-batch was already reported."""

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Queue the given offsets for publication, and discard offsets that are still waiting."""
        if not offsets:
            return
        with self._changed:
            if self._closed:
                return
            self._waiting.update(offsets)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"progress of {self._group}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Publish waiting offsets within ten seconds, and stop. Without `close`, waiting offsets may be lost."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._publishing), CLOSE_SECONDS_MAX)
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        admin: Admin | None = None
        while (offsets := self._next()) is not None:
            try:
                if admin is None:
                    admin = Admin(self._bootstrap, retry_timeout=self._retry_timeout).start()
                admin.commit_group_offsets(self._group, offsets)
            except FairleadError as error:
                LOG.warning("progress of group %s is not published: %s", self._group, error)
            finally:
                with self._changed:
                    self._publishing = False
                    self._changed.notify_all()
        if admin is not None:
            admin.close()

    def _next(self) -> dict[TopicPartition, int] | None:
        """Wait for offsets to publish and return them; return None when the listener is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            offsets, self._waiting = self._waiting, {}
            self._publishing = True
            return offsets


def end_offsets(sources: Iterable[SourceProgress]) -> dict[TopicPartition, int]:
    """Return the next offset of each partition in the progress of Fairlead sources; other sources are ignored.

    If several sources read the same partition, the lowest offset is returned.
    """
    ends: dict[TopicPartition, int] = {}
    for source in sources:
        for topic, partitions in _offsets_of(source.endOffset).items():
            for partition, offset in partitions.items():
                place = TopicPartition(topic, partition)
                ends[place] = min(offset, ends.get(place, offset))
    return ends


def _offsets_of(text: str | None) -> Mapping[str, Mapping[int, int]]:
    try:
        document = json.loads(text or "null")
    except ValueError:
        return {}
    if not isinstance(document, dict) or document.keys() - {"from"} != {"topics", "v"}:
        return {}
    try:
        return StreamOffsets.from_json(document).end_offsets()
    except OffsetsFormatError:
        # A source of another vendor may use the same member names in its offsets.
        return {}
