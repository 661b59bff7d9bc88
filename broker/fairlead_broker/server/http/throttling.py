"""Wait of a fetch whose caller is over a limit (rule Q6).

Callers: the endpoints that answer with records. A caller in debt waits instead of being refused, so that a long poll
costs no further requests.
"""

from __future__ import annotations

import asyncio
import math

from fairlead_broker.server.http.call import Call
from fairlead_broker.server.http.disconnect import unless_gone


async def wait_for_room(
    call: Call, seconds_max: float = math.inf, *, is_watched: bool = False
) -> float | None:
    """Wait until the caller may fetch; return the remaining seconds of a long poll, or None if no time remains.

    Raises ClientGone if the client disconnects. If `is_watched` is set, the caller of this function detects the
    disconnect.
    """
    quota = call.quota
    if quota is None:
        return seconds_max
    left = seconds_max
    while (seconds := quota.wait_seconds(call.matched_route.traffic)) > 0:
        if left <= 0:
            return None
        pause = min(seconds, left)
        # A bucket refills as time passes; no event is needed.
        sleep = asyncio.sleep(pause)  # noqa: TID251
        await (sleep if is_watched else unless_gone(call.receive, sleep))
        left -= pause
    return max(left, 0.0)
