"""Errors of a read or write without the traceback of the Python process in which Spark plans.

Spark shows the formatted traceback of a failed process to the user. For an invalid option, a missing topic or lost
records, the traceback contains only modules of Spark and of this package. The source and the sinks use this module on
the driver when they plan.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fairlead.errors import FairleadError
from fairlead_spark.option_values import OptionError
from fairlead_spark.planning.losses import DataLoss

VARIABLE: Final = "SPARK_HIDE_TRACEBACK"
"""Variable that PySpark reads when it formats the error of a process."""
EXPLAINED: Final = (OptionError, DataLoss, FairleadError)
"""Errors whose messages name the cause and the remedy."""


@contextmanager
def brief_errors(*also: type[Exception]) -> Iterator[None]:
    """Make Spark show an explained error as one line. `also` contains further explained errors.

    The process ends with the error, so the variable affects no other error.
    """
    explained: tuple[type[Exception], ...] = (*EXPLAINED, *also)
    try:
        yield
    except explained:
        os.environ[VARIABLE] = "1"
        raise
