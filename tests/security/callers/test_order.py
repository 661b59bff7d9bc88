"""Decisions that a broker makes before it reads the query and the body of a request (rules A2, Q6)."""

from __future__ import annotations

import asyncio

from security_kit import Secured

PATH = "/v1/topics/t/records"
RECORD = {"records": [{"value": "x" * 50_000}]}
WAIT_SECONDS_MAX = 60.0


async def first_status(address: str, token: str | None) -> int:
    """Announce a body over HTTP/1.1, wait for `100 Continue` or a refusal, and return the first status."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = [f"POST {PATH} HTTP/1.1", f"host: {address}", "content-type: application/json"]
    head += ["content-length: 1000", "expect: 100-continue"]
    head += [] if token is None else [f"authorization: Bearer {token}"]
    writer.write("\r\n".join((*head, "", "")).encode())
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        line = await reader.readline()
    writer.transport.abort()
    return int(line.split(b" ", 2)[1])


async def test_no_query_and_no_body_of_a_refused_request_is_read(secured: Secured) -> None:
    """Without a token, a right or room in its quota, a caller is refused before its query and its body are read.

    The broker requests the body, and checks the query, of an admitted caller only.
    """
    assert (await secured.call("POST", "/v1/topics", secured.admin, {"name": "t"})).status == 201
    tokens: list[str | None] = [None]
    for name in ("nobody", "busy", "writer"):
        tokens.append((await secured.token(f"user:{name}"))["token"])
        if name != "nobody":
            await secured.acl(f"user:{name}", "write", "topic:t")
    quota = {"each": {"produce_bytes_per_second": 1000}}
    assert (await secured.call("PUT", "/v1/quotas/user%3Abusy", secured.admin, quota)).status == 200
    # The caller is in debt for the next fifty seconds.
    assert (await secured.call("POST", PATH, tokens[2], RECORD)).status == 200
    odd = [(await secured.call("POST", f"{PATH}?odd=1", token, RECORD)).code for token in tokens]
    address = str(secured.cluster.brokers[1].addresses.data)
    first = [await first_status(address, token) for token in tokens]

    assert odd == ["unauthenticated", "forbidden", "throttled", "unknown_option"]
    assert first == [401, 403, 429, 100]
