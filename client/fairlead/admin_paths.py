"""Paths of the calls about one broker, topic, partition, group, transaction or link; used by the admin client.

A name that no such object can have raises its error before a request is sent.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from fairlead.connection.metadata import check_name
from fairlead.errors import error_of
from fairlead.topic_partition import TopicPartition
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError

GROUPS_PATH: Final = "/v1/groups"
TRANSACTIONS_PATH: Final = "/v1/transactions"
LINKS_PATH: Final = "/v1/links"


def broker_path(broker: int) -> str:
    """Return the path of a broker."""
    return f"/v1/brokers/{broker}"


def broker_config_path(broker: int) -> str:
    """Return the path of a broker's configuration."""
    return f"{broker_path(broker)}/config"


def topic_path(name: str) -> str:
    """Return the path of a topic. Raises `InvalidTopicNameError`."""
    return f"/v1/topics/{quote(check_name(name), safe='')}"


def partition_path(place: TopicPartition) -> str:
    """Return the path of a partition. Raises `InvalidTopicNameError`."""
    return f"{topic_path(place.topic)}/partitions/{place.partition}"


def link_path(link: str) -> str:
    """Return the path of a link. Raises `InvalidTopicNameError`, because links have names like those of topics."""
    return f"{LINKS_PATH}/{quote(check_name(link), safe='')}"


def transaction_path(transaction: str) -> str:
    """Return the path of a transaction."""
    return f"{TRANSACTIONS_PATH}/{quote(transaction, safe='')}"


def group_path(group: str) -> str:
    """Return the path of a consumer group. Raises `InvalidGroupNameError`."""
    try:
        return f"{GROUPS_PATH}/{quote(check_group_name(group), safe='')}"
    except ProblemError as problem:
        raise error_of(problem, subject=f"group {group!r}") from problem
