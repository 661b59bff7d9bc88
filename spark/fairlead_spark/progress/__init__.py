"""How far streaming queries are, published as committed offsets of a consumer group, so that lag can be seen.

Called by programs: `spark.streams.addListener(GroupProgress(...))`. Must not know how a source reads.
"""

from fairlead_spark.progress.group_progress import GroupProgress

__all__ = ["GroupProgress"]
