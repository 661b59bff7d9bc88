"""Quotas for Kafka's clients: a request beyond a limit waits, and the answer states how long the next would wait.

`dispatch` begins and ends the charge of each request. The limits are those of the HTTP listener, which refuses requests
instead: Kafka's clients count refusals as retries.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fairlead_api.problems import ProblemError
from fairlead_api.routes.definitions import Traffic
from fairlead_broker.kafka.calls.call import CloseConnection, KafkaCall
from fairlead_broker.kafka.calls.replies import Reply
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.runtime.quota_view import CallerQuota, QuotaView

WAIT_SECONDS_MAX: Final = 20.0
"""Maximum number of seconds for which a request waits before its connection is closed; clients wait for an answer for
30 seconds."""
PUBLIC_APIS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that any client may use before it authenticates, and that are not counted by any quota."""
TRAFFIC: Final[Mapping[ApiKey, Traffic]] = MappingProxyType(
    {ApiKey.PRODUCE: Traffic.PRODUCE, ApiKey.FETCH: Traffic.FETCH}
)
"""Kind of traffic of each API that transfers records; every other API is a call."""


class Throttling:
    """Charges of requests to the quotas of their callers."""

    def __init__(self, quotas: QuotaView) -> None:
        self._quotas = quotas

    async def begin(self, call: KafkaCall, nbytes: int) -> CallerQuota | None:
        """Charge a request as soon as its caller's quota admits it; `nbytes`: size of the request.

        Returns None for a request without quotas. Raises CloseConnection if the request would have to wait too long.
        """
        if call.access.is_open or call.api.key in PUBLIC_APIS:
            return None
        traffic = _traffic(call)
        quota = self._quotas.of(call.access, call.client.address)
        counted = nbytes if traffic is Traffic.PRODUCE and quota.counts_bodies else 0
        # The requests of a connection begin in the order in which they arrived.
        async with call.client.quota_turn:
            left = WAIT_SECONDS_MAX
            while True:
                seconds = quota.wait_seconds(traffic) if traffic is Traffic.FETCH else 0.0
                if seconds <= 0:
                    try:
                        quota.begin(traffic, counted)
                    except ProblemError as problem:
                        seconds = problem.retry_after_seconds or 1.0
                    else:
                        return quota
                if left <= 0:
                    raise CloseConnection("the client is beyond its quota")
                pause = min(seconds, left)
                # A bucket refills as time passes; no event announces it.
                await asyncio.sleep(pause)  # noqa: TID251
                left -= pause

    @staticmethod
    def end(quota: CallerQuota, call: KafkaCall) -> None:
        """End the charge of a request."""
        quota.end(_traffic(call), 0)

    @staticmethod
    def state_wait(quota: CallerQuota, call: KafkaCall, reply: Reply) -> None:
        """Charge the records of an answer, and state in the answer when the next request of its kind can begin."""
        traffic = _traffic(call)
        if reply.record_bytes:
            quota.fetched(reply.record_bytes)
        seconds = quota.wait_seconds(traffic)
        if seconds > 0:
            reply.response.throttle_time_ms = math.ceil(seconds * 1000)


def _traffic(call: KafkaCall) -> Traffic:
    return TRAFFIC.get(call.api.key, Traffic.CALL)
