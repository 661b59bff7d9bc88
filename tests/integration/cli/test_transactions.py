"""Transactions on the command line: records of one transaction, readers of committed records, open transactions."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from command_line_kit import CommandLine


def post(url: str, body: object, **headers: str) -> Any:
    """Send a JSON request and return the answer."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json", **names}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_all_lines_or_none_are_seen_by_committed_readers(fairlead: CommandLine) -> None:
    """Readers of committed records get all lines of a valid input, and no line of an input with a bad line."""
    fairlead("topic", "create", "loads")
    fairlead("produce", "loads", "--transaction", "--name", "load", typed=b"a\nb\n")
    fairlead("produce", "loads", "--transaction", "-f", r"%k %v\n", typed=b"k c\nno-separator\n", code=2)
    errors = fairlead.errors
    fairlead("produce", "loads", typed=b"d\n")
    read = ("consume", "loads", "--from-beginning")
    committed = fairlead(*read, "-n", "3", "--isolation", "read_committed")
    member = fairlead(*read, "-n", "3", "-g", "loaders", "--isolation", "read_committed")
    everything = fairlead(*read, "-e")
    listed = json.loads(fairlead("transaction", "list", "--name", "load", "--output", "json"))

    assert committed.split() == member.split() == ["a", "b", "d"]
    assert everything.split() == ["a", "b", "c", "d"]
    assert "line 2" in errors
    assert [each["ended"]["state"] for each in listed] == ["committed"]


def test_misused_options_of_transactions_are_refused(fairlead: CommandLine) -> None:
    """A name without a transaction, and acknowledgements that a transaction does not allow, are usage errors."""
    fairlead("produce", "loads", "--name", "load", code=2)
    fairlead("produce", "loads", "--transaction", "--acks", "1", code=2)


def test_an_open_transaction_is_listed_until_it_is_aborted(fairlead: CommandLine, dev_broker: str) -> None:
    """An open transaction is listed with its partition, and its records do not count in the lag of committed readers.

    The transaction is not listed as hanging before its timeout, and is no longer open after an abort by name.
    """
    fairlead("produce", "opened", typed=b"a\n")
    fairlead("consume", "opened", "--from-beginning", "-n", "1", "-g", "openers")
    begun = post(f"{dev_broker}/v1/transactions", {"name": "opener"})["transaction"]
    records = {"records": [{"value": "b"}]}
    post(f"{dev_broker}/v1/topics/opened/partitions/0/records", records, Fairlead_Transaction=begun)

    def found(*command: str) -> Any:
        return json.loads(fairlead(*command, "--output", "json"))

    before = found("partition", "transactions", "opened", "0")["items"]
    listed = found("transaction", "list", "--open")
    lags = [found("group", "lag", "openers", "--isolation", f"read_{each}committed") for each in ("un", "")]
    hanging = found("transaction", "hanging", "--topic", "opened")
    fairlead("transaction", "abort", "opener", "--yes")
    ended = found("transaction", "describe", "opener")["ended"]
    fairlead("produce", "opened", typed=b"c\n")
    committed = fairlead("consume", "opened", "--from-beginning", "-n", "2", "--isolation", "read_committed")

    assert [(each["transaction"], each["first_offset"], each["timeout_ms"]) for each in before] == [
        (begun, 1, 60_000)
    ]
    assert "opener" in {each["name"] for each in listed}
    assert [each["total_records"] for each in lags] == [1, 0]
    assert hanging == []
    assert committed.split() == ["a", "c"]
    assert found("partition", "transactions", "opened", "0")["items"] == []
    assert (ended["transaction"], ended["reason"]) == (begun, "operator")
