"""What a topic's configuration demands of a produced batch.

Called by `partition` for its topic, and by `broker` for a topic that a produce is about to create. Pure.
"""

from __future__ import annotations

from fairlead_api.batch.validation import UNLIMITED_US, ValidationLimits
from fairlead_api.configuration import TimestampType, TopicConfig


def limits_of(config: TopicConfig, decompressed_bytes_max: int) -> ValidationLimits:
    """The limits of batches; times are not judged where the append time replaces them (as in Kafka)."""
    kept = config.message_timestamp_type is not TimestampType.LOG_APPEND_TIME

    def window_us(milliseconds: int) -> int:
        return min(milliseconds * 1000, UNLIMITED_US) if kept else UNLIMITED_US

    return ValidationLimits(
        batch_bytes_max=config.max_message_bytes,
        decompressed_bytes_max=decompressed_bytes_max,
        timestamp_before_max_us=window_us(config.message_timestamp_before_max_ms),
        timestamp_after_max_us=window_us(config.message_timestamp_after_max_ms),
        create_times_kept=kept,
    )
