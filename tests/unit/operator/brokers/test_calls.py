"""Clients of clusters: one client per set of addresses, and one error type for failures that a retry may fix."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fairlead.errors import NotPossibleNowError, OverloadedError
from fairlead_api.problems import ProblemError
from fairlead_operator.brokers.calls import (
    UNUSED_SECONDS_MAX,
    BrokerCalls,
    BrokersUnavailable,
    broker_deadline,
    broker_errors,
    brokers_of,
    survey,
)
from fairlead_operator.clock import SystemClock
from refusals import raises


class HandClock(SystemClock):
    """A clock that the test advances."""

    seconds = 0.0

    def monotonic(self) -> float:
        """Return the seconds that the test has set."""
        return self.seconds


def cluster(replicas: int, status: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the Cluster `main` as the API server stores it."""
    return {
        "metadata": {"namespace": "shop", "name": "main"},
        "spec": {"brokers": [{"name": "a", "replicas": replicas}, {"name": "b", "firstBrokerId": 100}]},
        "status": status or {},
    }


def test_brokers_are_those_that_are_asked_for_and_those_that_still_run() -> None:
    """Brokers of a Cluster are the brokers in its spec and all running brokers, each listed once."""
    leaving = {"pools": [{"name": "a", "brokerIds": [0, 1, 2]}, {"name": "b", "brokerIds": [100]}]}

    assert brokers_of(cluster(2, leaving)) == [("a", 0), ("a", 1), ("a", 2), ("b", 100)]
    assert brokers_of({"metadata": {}}) == []


async def test_a_client_is_kept_while_the_addresses_stay() -> None:
    """A client is reused while the number of brokers stays the same, and is reopened after it was dropped."""
    calls = BrokerCalls("http://{pod}.{pool}.{cluster}.{namespace}.invalid:1{id}")
    first = await calls.admin(cluster(2))
    again = await calls.admin(cluster(2))
    more = await calls.admin(cluster(3))
    await calls.forget("shop", "main")
    anew = await calls.admin(cluster(3))
    await calls.close()
    await calls.forget("shop", "main")

    assert again is first
    assert more is not first
    assert anew is not more


async def test_an_unused_client_is_closed_after_a_while() -> None:
    """A client is closed when it has been unused for longer than any call may take.

    Two clients that are used alternately both stay open.
    """
    clock = HandClock()
    calls = BrokerCalls("http://127.0.0.1:1", clock=clock)
    first, more = await calls.admin(cluster(2)), await calls.admin(cluster(3))
    kept = await calls.admin(cluster(2))
    clock.seconds += UNUSED_SECONDS_MAX + 1
    await calls.admin(cluster(3))
    with pytest.raises(BrokersUnavailable):
        await survey(first, with_metadata=False)
    with pytest.raises(BrokersUnavailable):
        await survey(more, with_metadata=False)
    await calls.close()

    assert kept is first


async def test_a_cluster_without_brokers_is_unavailable() -> None:
    """A Cluster without brokers fails with `BrokersUnavailable`."""
    with raises(BrokersUnavailable, "shop/main"):
        await BrokerCalls().admin(cluster(0))


async def test_brokers_that_are_not_there_are_unavailable() -> None:
    """A call to brokers that refuse connections fails quickly with `BrokersUnavailable`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        calls = BrokerCalls(f"http://127.0.0.1:{taken.getsockname()[1]}")
        admin = await calls.admin(cluster(1))
        with pytest.raises(BrokersUnavailable):
            await survey(admin, with_metadata=False)
        await calls.close()


async def test_a_call_that_hangs_ends_at_its_deadline() -> None:
    """A call to a broker that does not answer fails at its deadline."""
    with raises(BrokersUnavailable, "0.01"):
        async with broker_deadline("looking", 0.01):
            await asyncio.Event().wait()


def test_what_another_attempt_may_mend_is_one_error() -> None:
    """Errors that a retry may fix become `BrokersUnavailable`; permanent refusals are raised unchanged."""
    with pytest.raises(BrokersUnavailable), broker_errors():
        raise OverloadedError(ProblemError("overloaded", "too many"), subject="ask")
    with pytest.raises(NotPossibleNowError), broker_errors():
        raise NotPossibleNowError(ProblemError("not_possible_now", "it runs"), subject="unregister")
