"""How a task of a write ended: what it wrote, or that it did not write everything."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


class WriteError(RuntimeError):
    """Records of a task were not acknowledged; some of its records may be stored."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task wrote."""

    records: int
