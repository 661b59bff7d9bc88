"""Paths of the calls about one broker, topic, partition, group, transaction or link; used by the admin client.

The module also has queries that several calls share. A name that no such object can have raises its error before a
request is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from fairlead.connection.metadata import check_name
from fairlead.errors import error_of
from fairlead.topic_partition import TopicPartition
from fairlead_api.identifiers import check_group_name
from fairlead_api.problems import ProblemError

GROUPS: Final = "/v1/groups"
TRANSACTIONS: Final = "/v1/transactions"
LINKS: Final = "/v1/links"
TOKENS: Final = "/v1/tokens"
ACLS: Final = "/v1/acls"
QUOTAS: Final = "/v1/quotas"
CLUSTER_CONFIG: Final = "/v1/cluster/config"


def broker(number: int) -> str:
    """Return the path of a broker."""
    return f"/v1/brokers/{number}"


def broker_config(number: int) -> str:
    """Return the path of a broker's configuration."""
    return f"{broker(number)}/config"


def topic(name: str) -> str:
    """Return the path of a topic. Raises `InvalidTopicNameError`."""
    return f"/v1/topics/{quote(check_name(name), safe='')}"


def partition(place: TopicPartition) -> str:
    """Return the path of a partition. Raises `InvalidTopicNameError`."""
    return f"{topic(place.topic)}/partitions/{place.partition}"


def link(name: str) -> str:
    """Return the path of a link. Raises `InvalidTopicNameError`, because links have names like those of topics."""
    return f"{LINKS}/{quote(check_name(name), safe='')}"


def transaction(name: str) -> str:
    """Return the path of a transaction."""
    return f"{TRANSACTIONS}/{quote(name, safe='')}"


def group(name: str) -> str:
    """Return the path of a consumer group. Raises `InvalidGroupNameError`."""
    try:
        return f"{GROUPS}/{quote(check_group_name(name), safe='')}"
    except ProblemError as problem:
        raise error_of(problem, subject=f"group {name!r}") from problem


def topics_query(topics: str | Iterable[str] | None) -> dict[str, str]:
    """Return the query of a call about one topic or several topics; empty for all topics."""
    names = [topics] if isinstance(topics, str) else topics
    return {} if names is None else {"topics": ",".join(names)}


def forced(force: bool) -> dict[str, str]:
    """Return the query of a call that also changes a record of another owner if `force` is set."""
    return {"force": "true"} if force else {}
