"""The pages of the console, in the order of the navigation."""

from __future__ import annotations

from typing import Final

from fairlead_console.page import ConsolePage
from fairlead_console.pages import overview, problem, topic, topics

PAGES: Final = (
    ConsolePage(overview.router, "Overview", "/"),
    ConsolePage(topics.router, "Topics", "/topics"),
    ConsolePage(topic.router),
    ConsolePage(problem.router),
)
"""Every page; the first one that knows an address answers."""
