"""Progress of streaming queries, published as committed offsets of a consumer group, so that lag is visible.

Called by programs: `spark.streams.addListener(GroupProgress(...))`. The room must not know how a source reads.
"""

from fairlead_spark.progress.group_progress import GroupProgress

__all__ = ["GroupProgress"]
