"""Commits of the workers' transactions, as etcd has written them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Final

from chaos_cluster import call
from pricing_process import WORKER

if TYPE_CHECKING:
    from pyreqwest.client import Client

TRANSACTIONS: Final = b"/fairlead/fairlead/transactions/"
"""Prefix of the keys of transaction records in etcd."""


async def commits(client: Client, url: str) -> dict[str, int]:
    """Return the epoch of each worker's last committed transaction, read from etcd.

    Commits of the other programs are left out, because any broker decides them.
    """
    end = TRANSACTIONS[:-1] + bytes([TRANSACTIONS[-1] + 1])
    body = {"key": b64encode(TRANSACTIONS).decode(), "range_end": b64encode(end).decode()}
    found = {}
    for item in (await call(client, "POST", f"{url}/v3/kv/range", body)).json.get("kvs", ()):
        record = json.loads(b64decode(item["value"]))
        ended_one = record.get("ended")
        is_worker = (record.get("name") or "").startswith(WORKER)
        if is_worker and ended_one is not None and ended_one["outcome"] == "commit":
            found[item["key"]] = ended_one["epoch"]
    return found
