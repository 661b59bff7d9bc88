"""What answers a route; a type only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from fairlead_broker.server.call import Call

Endpoint: TypeAlias = Callable[[Call], Awaitable[None]]
