"""The pages of the console, in the order of the navigation."""

from __future__ import annotations

from typing import Final

from fairlead_console.page import ConsolePage
from fairlead_console.pages import problem, sign_in
from fairlead_console.pages.cluster import (
    broker,
    brokers,
    kafka,
    link_changes,
    links,
    overview,
    security,
    transactions,
)
from fairlead_console.pages.groups import group, group_reset, groups
from fairlead_console.pages.messages import (
    message,
    message_export,
    message_produce,
    message_tail,
    messages,
)
from fairlead_console.pages.topics import (
    topic,
    topic_changes,
    topic_cleaning,
    topic_producers,
    topic_voters,
    topics,
)

PAGES: Final = (
    ConsolePage(overview.router, "Overview", "/"),
    ConsolePage(topics.router, "Topics", "/topics"),
    ConsolePage(topic.router),
    ConsolePage(topic_changes.router),
    ConsolePage(topic_cleaning.router),
    ConsolePage(topic_producers.router),
    ConsolePage(topic_voters.router),
    ConsolePage(groups.router, "Groups", "/groups"),
    ConsolePage(group.router),
    ConsolePage(group_reset.router),
    ConsolePage(brokers.router, "Brokers", "/brokers"),
    ConsolePage(broker.router),
    ConsolePage(link_changes.router),
    ConsolePage(links.router, "Links", "/links"),
    ConsolePage(kafka.router, "Kafka", "/kafka"),
    ConsolePage(transactions.router, "Transactions", "/transactions"),
    ConsolePage(security.router, "Security", "/security"),
    ConsolePage(messages.router),
    ConsolePage(message.router),
    ConsolePage(message_export.router),
    ConsolePage(message_tail.router),
    ConsolePage(message_produce.router),
    ConsolePage(problem.router),
    ConsolePage(sign_in.router),
)
"""All pages; a request is answered by the first page with a matching address."""
