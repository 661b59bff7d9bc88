"""Cases of the alerts on links, for `alert_cases.py`."""

from __future__ import annotations

from typing import Final

from alert_series import WHERE, of_broker, pair

MIRROR: Final = {"link": "east", "topic": "orders", "partition": "0"}
LINKS: Final = (
    *pair(
        "FairleadLinkUnreachable",
        3,
        {of_broker("fairlead_link_source_reachable", link="east"): "1 0 0 0"},
        "The source of link east of cluster main in shop does not answer, or refuses the calls of the link.",
        {**WHERE, "link": "east"},
        {of_broker("fairlead_link_source_reachable", link="east"): "0 0 1 0"},
    ),
    *pair(
        "FairleadLinkLag",
        7,
        {of_broker("fairlead_link_lag_seconds", **MIRROR): "120+60x7"},
        "Topic orders of link east of cluster main in shop is 9m 0s behind its source.",
        {**WHERE, "link": "east", "topic": "orders"},
        {of_broker("fairlead_link_lag_seconds", **MIRROR): "50+0x7"},
    ),
    *pair(
        "FairleadLinkFaulted",
        1,
        {of_broker("fairlead_link_faulted_partitions", **MIRROR): "0 1"},
        "1 partitions of topic orders of link east of cluster main in shop have stopped copying.",
        {**WHERE, "link": "east", "topic": "orders"},
        {of_broker("fairlead_link_faulted_partitions", **MIRROR): "1 0"},
    ),
    *pair(
        "FairleadLinkRecordsMissing",
        16,
        {of_broker("fairlead_link_skipped_records_total", link="east", topic="orders"): "0+10x16"},
        "Topic orders of link east of cluster main in shop skipped or dropped 150 records within 15 minutes, because"
        " its source had deleted or lost them.",
        {**WHERE, "link": "east", "topic": "orders"},
        {
            of_broker("fairlead_link_skipped_records_total", link="east", topic="orders"): "7+0x16",
            of_broker("fairlead_link_truncated_records_total", link="east", topic="orders"): "7+0x16",
        },
    ),
)
