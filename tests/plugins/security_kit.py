"""A broker in the mode `enforce` with real listeners, and requests of callers with tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from broker_kit import JSON, Answer, Calls
from cluster_kit import Cluster


@dataclass
class Secured:
    """A broker in the mode `enforce`, and the token of its administrator."""

    cluster: Cluster
    calls: Calls
    admin: str

    async def call(
        self, method: str, path: str, token: str | None = None, body: object = None, **headers: str
    ) -> Answer:
        """Send one request with a token, or without; a body that is not bytes is sent as JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            named |= JSON
            body = msgspec.json.encode(body)
        return await self.calls.call(method, path, body, named)

    async def token(self, principal: str, **fields: object) -> dict[str, Any]:
        """Create a token and return the answer."""
        answer = await self.call("POST", "/v1/tokens", self.admin, {"principal": principal, **fields})
        assert answer.status == 201, answer
        return dict(answer.json)

    async def acl(self, principal: str, operations: str, resource: str, effect: str = "allow") -> str:
        """Create an ACL and return its id."""
        kind, _, pattern = resource.partition(":")
        body = {
            "effect": effect,
            "principal": principal,
            "operations": operations.split(","),
            "kind": kind,
            "pattern": pattern,
        }
        answer = await self.call("POST", "/v1/acls", self.admin, body)
        assert answer.status in (200, 201), answer
        return str(answer.json["acl_id"])
