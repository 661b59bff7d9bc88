"""Compaction and vacuum of a table, by the query that writes it.

The stream writer calls this module on the driver after the commit of a micro-batch, while Spark waits. A failed
compaction or vacuum never fails the batch, which is already in the table. Readers of older versions see the files
replaced by a compaction until a vacuum deletes these files.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fairlead_spark.lake.commits import open_table
from fairlead_spark.lake.storage import STORE_ERRORS

if TYPE_CHECKING:
    from fairlead_spark.lake.options import LakeOptions

logger = logging.getLogger(__name__)

VACUUM_SECONDS_MIN: Final = 24 * 3600.0
"""Time between two vacuums of a table by one process: a vacuum lists every file of the table."""
# Time of the last vacuum of each table by this process.
_vacuumed_at: dict[str, float] = {}


def is_due(options: LakeOptions, batch_id: int) -> bool:
    """Return whether a table is compacted after a micro-batch; the result depends only on the batch number."""
    return options.compact_every is not None and (batch_id + 1) % options.compact_every == 0


def maintain(options: LakeOptions, now_seconds: float) -> None:
    """Join small files of the table, and delete the files of old versions; a refusal is only logged.

    `now_seconds`: time of a monotonic clock in seconds.
    """
    try:
        table = open_table(options)
        if table is None:
            return
        done = table.optimize.compact()
        logger.info(
            "%s: %s files joined into %s", options.path, done["numFilesRemoved"], done["numFilesAdded"]
        )
        if options.vacuum_hours is None:
            return
        last = _vacuumed_at.get(options.path)
        if last is None or now_seconds - last >= VACUUM_SECONDS_MIN:
            table.vacuum(options.vacuum_hours, dry_run=False, full=True)
            _vacuumed_at[options.path] = now_seconds
    except STORE_ERRORS as error:
        logger.warning("%s was not compacted or vacuumed: %s", options.path, error)
