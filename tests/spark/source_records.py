"""Records for several tests of the source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from fairlead.blocking import Producer

NOON: Final = datetime(2026, 1, 2, 12, 0, 0, 123456, tzinfo=UTC)
HUNDRED: Final = "hundred"


def send_hundred(bootstrap: str) -> str:
    """Store the values 0 to 99 in one partition, one second apart, in ten batches, and return the topic."""
    with Producer(bootstrap) as producer:
        for number in range(100):
            producer.send(HUNDRED, b"%d" % number, timestamp=NOON + timedelta(seconds=number))
            if number % 10 == 9:
                producer.flush()
    return HUNDRED
