"""Reads of topics that change during the read."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead import Admin as AsyncAdmin
from fairlead.blocking import Admin
from fairlead_api.bodies.metadata import TopicMetadata
from fairlead_spark.options import ReadOptions
from fairlead_spark.planning.offsets import StreamOffsets
from fairlead_spark.planning.positions import TIMESTAMP_MS_MAX, AtTime
from fairlead_spark.source.cluster_view import ClusterView


class Hurried(ClusterView):
    """A view of a read in which another client deletes one of the topics during the first metadata request."""

    victim = ""

    async def _topics(self, *, missing_ok: bool) -> Mapping[str, TopicMetadata]:
        topics = await super()._topics(missing_ok=missing_ok)
        if self.victim in topics:
            async with AsyncAdmin(self._options.bootstrap) as admin:
                await admin.delete_topic(self.victim)
        return topics


def test_a_topic_that_is_deleted_during_a_look_is_left_out(bootstrap: str, topic: str) -> None:
    """A topic that is deleted during the metadata request of a read is left out.

    The plan reports the loss, as for a topic that was deleted earlier, and the query need not fail.
    """
    kept, deleted = f"{topic}-kept", f"{topic}-deleted"
    with Admin(bootstrap) as admin:
        admin.create_topic(kept, partitions=1)
        admin.create_topic(deleted, partitions=2)
    view = Hurried(ReadOptions.parse({"bootstrap": bootstrap, "subscribe": f"{kept},{deleted}"}))
    view.victim = deleted

    assert list(view.latest(StreamOffsets()).end_offsets()) == [kept]


def test_a_time_after_all_records_may_be_the_end(bootstrap: str, hundred: str) -> None:
    """With the strategy `latest`, a read that begins at a time after all records begins at the end of the log."""
    options = {"subscribe": hundred, "startingOffsetsByTimestampStrategy": "latest"}
    view = ClusterView(ReadOptions.parse({"bootstrap": bootstrap, **options}))

    assert view.offsets(AtTime(TIMESTAMP_MS_MAX), "startingTimestamp").end_offsets() == {hundred: {0: 100}}
