"""Calls that describe and alter the configuration of the cluster and of brokers.

Callers: ``application`` for the routes named in ``endpoints``. The runtime defines the meaning of each key and where
its value is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead_api.bodies.metadata import ConfigDescription
from fairlead_api.bodies.requests import AlterConfigRequest, decode_request
from fairlead_api.excerpts import shown
from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.configs import differences
from fairlead_broker.runtime.security_mode import check_security_change
from fairlead_broker.server.http.call import Call, Endpoint, json_body
from fairlead_broker.server.http.request_target import not_found

BROKER_ID_MAX: Final = 2**31 - 1


class ConfigCalls:
    """Endpoints of the calls about the configuration of the cluster and of brokers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoint of each route of this family, by route name."""
        return {
            "describe_cluster_config": self.describe_cluster_config,
            "alter_cluster_config": self.alter_cluster_config,
            "describe_broker_config": self.describe_broker_config,
            "alter_broker_config": self.alter_broker_config,
        }

    async def describe_cluster_config(self, call: Call) -> None:
        """``GET /v1/cluster/config``."""
        await call.answer_json(ConfigDescription(config=self._broker.configs.of_cluster()))

    async def alter_cluster_config(self, call: Call) -> None:
        """``PATCH /v1/cluster/config``."""
        request = decode_request(AlterConfigRequest, await json_body(call))
        check_security_change(self._broker.feature_level, call.access, request.config)
        before = self._broker.configs.of_cluster()
        changed = await self._broker.alter_cluster_config(request.config)
        call.change = {"config": differences(before, changed)}
        await call.answer_json(ConfigDescription(config=changed))

    async def describe_broker_config(self, call: Call) -> None:
        """``GET /v1/brokers/{broker}/config``."""
        await call.answer_json(ConfigDescription(config=self._broker.broker_config(broker_in_path(call))))

    async def alter_broker_config(self, call: Call) -> None:
        """``PATCH /v1/brokers/{broker}/config``."""
        broker = broker_in_path(call)
        request = decode_request(AlterConfigRequest, await json_body(call))
        before = self._broker.broker_config(broker)
        changed = await self._broker.alter_broker_config(broker, request.config)
        call.change = {"config": differences(before, changed)}
        await call.answer_json(ConfigDescription(config=changed))


def broker_in_path(call: Call) -> BrokerId:
    """Return the broker in the path.

    Raises route_not_found for an empty segment, and malformed_request for an invalid broker id.
    """
    text = call.parameters["broker"]
    if not text:
        raise not_found(call.raw_path)
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > BROKER_ID_MAX:
        raise ProblemError(
            "malformed_request",
            f"broker {shown(text)} is not a number from 0 to {BROKER_ID_MAX}",
            data={"parameter": "broker", "value": text[:80], "allowed": f"0 to {BROKER_ID_MAX}"},
        )
    return BrokerId(int(text))
