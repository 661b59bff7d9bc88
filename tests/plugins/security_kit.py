"""A broker in `enforce` mode with real listeners, requests from callers with tokens, and a path for each route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker_kit import JSON, Answer, Calls
from cluster_kit import Cluster
from fairlead_api.access_needs import SINGLE_KINDS, Kind
from fairlead_api.routes import Route

NAMES: Final[Mapping[str, str]] = {"topic": "shop.orders", "group": "shop.readers", "producer": "shop.loader"}
"""Name of each kind of resource in `path_of` and `resource_of`."""
REFUSALS: Final = frozenset({"unauthenticated", "forbidden"})
"""Codes of the problems with which access is refused."""
_UNDECIDED: Final = frozenset({"throttled", "route_not_found", "method_not_allowed", "internal"})
"""Codes of problems in answers that show no access decision."""
_VALUES: Final[Mapping[str, str]] = {
    **NAMES, "partition": "0", "code": "internal", "asset": "calls.css", "broker": "77", "member": "m-1",
    "token": "abcdefghijkl", "acl": "0123456789abcdef", "subject": "user:nobody",
    "transaction": "7.0", "link": "nothing",
}  # fmt: skip


def path_of(route: Route, **names: str) -> str:
    """Return a path for a route; `names` replace sample values.

    In tests, the topic, the group and the producer in the path may exist; other names in the path do not.
    """
    return route.path.format(**{**_VALUES, **names})


def resource_of(kind: Kind, **names: str) -> str:
    """Return the resource of a kind in the path of `path_of`, as in commands."""
    return f"{kind}:{'*' if kind in SINGLE_KINDS else {**NAMES, **names}[kind]}"


def outcome(answer: Answer) -> str:
    """Return the code of a refusal of access, or `admitted` for any answer after an access decision.

    No answer may redirect its caller or set a cookie (rule T14).
    """
    assert not 300 <= answer.status < 400, answer
    assert "set-cookie" not in answer.headers, answer
    if answer.headers.get("content-type") != "application/problem+json":
        return "admitted"
    assert answer.code not in _UNDECIDED, answer
    return answer.code if answer.code in REFUSALS else "admitted"


@dataclass
class Secured:
    """A broker that checks access, and the token of its administrator."""

    cluster: Cluster
    calls: Calls
    admin: str

    async def call(
        self, method: str, path: str, token: str | None = None, body: object = None, **headers: str
    ) -> Answer:
        """Send one request with or without a token; a body that is not bytes is sent as JSON."""
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

    async def set_mode(self, token: str | None, mode: str | None) -> int:
        """Set the mode of the cluster with the token of a caller; return the status."""
        body = {"config": {"security.mode": mode}}
        return (await self.call("PATCH", "/v1/cluster/config", token, body)).status

    async def denied(self) -> set[tuple[str, str, str]]:
        """Return principal, operation and resource of the decisions that `observe` mode has not enforced."""
        listed = (await self.call("GET", "/v1/security", self.admin)).json["would_be_denied"]
        return {(each["principal"], each["operation"], each["resource"]) for each in listed}
