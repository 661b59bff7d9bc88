"""Table of all calls that a broker serves.

The broker's dispatch and access decisions, the OpenAPI document and the reference page use the table. This module
must not depend on how a call is carried out.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.routes.configs import CONFIG_ROUTES
from fairlead_api.routes.definitions import (
    AnswerForm,
    HeaderParameter,
    Listener,
    Route,
)
from fairlead_api.routes.groups import GROUP_ROUTES
from fairlead_api.routes.links import LINK_ROUTES
from fairlead_api.routes.operations import OPERATION_ROUTES
from fairlead_api.routes.producers import PRODUCER_ROUTES
from fairlead_api.routes.records import RECORD_ROUTES
from fairlead_api.routes.security import SECURITY_ROUTES
from fairlead_api.routes.topics import OPS_ROUTES, TOPIC_ROUTES
from fairlead_api.routes.transactions import TRANSACTION_ROUTES

__all__ = [
    "ROUTES",
    "AnswerForm",
    "HeaderParameter",
    "Listener",
    "Route",
    "route",
]

ROUTES: Final[tuple[Route, ...]] = (
    *TOPIC_ROUTES,
    *CONFIG_ROUTES,
    *OPERATION_ROUTES,
    *LINK_ROUTES,
    *RECORD_ROUTES,
    *PRODUCER_ROUTES,
    *TRANSACTION_ROUTES,
    *GROUP_ROUTES,
    *SECURITY_ROUTES,
    *OPS_ROUTES,
)
"""Table of routes, in the order of the reference page."""

_BY_NAME: Final = {entry.name: entry for entry in ROUTES}


def route(name: str) -> Route:
    """Return the route with a name. Raises `KeyError` for an unknown name."""
    return _BY_NAME[name]
