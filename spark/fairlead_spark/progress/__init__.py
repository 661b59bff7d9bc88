"""Progress of streaming queries, published as committed offsets of a consumer group, so that their lag is visible.

Called by users' programs: `spark.streams.addListener(GroupProgress(...))`. The package must not depend on how a source
reads.
"""

from fairlead_spark.progress.group_progress import GroupProgress

__all__ = ["GroupProgress"]
