"""The budget of refused tokens for each address, with a burst and a rate (rule A6)."""

from __future__ import annotations

from fairlead_broker.credentials.failure_budget import (
    ADDRESSES_MAX,
    BURST,
    FAILURES_PER_SECOND,
    FailureBudget,
)


def failing(budget: FailureBudget, address: str, seconds: int, tries_per_second: int = 1000) -> int:
    """Return how many invalid tokens from an address are checked within a number of seconds."""
    looked_at = 0
    for number in range(seconds * tries_per_second):
        now = number / tries_per_second
        if budget.wait_seconds(address, now) == 0:
            budget.fail(address, now)
            looked_at += 1
    return looked_at


def test_an_address_fails_at_a_rate_after_a_burst() -> None:
    """After a burst, only a limited number of invalid tokens from an address are checked per second.

    Tokens from other addresses are still checked at once.
    """
    budget = FailureBudget()
    looked_at = failing(budget, "10.0.0.1", 10)

    assert abs(looked_at - (BURST + 10 * FAILURES_PER_SECOND)) <= 2
    assert budget.wait_seconds("10.0.0.1", 10.0) < 1 / FAILURES_PER_SECOND + 1e-6
    assert budget.wait_seconds("10.0.0.2", 0.0) == 0
    assert budget.wait_seconds("10.0.0.1", 60.0) == 0


def test_addresses_of_one_network_count_together() -> None:
    """IPv6 addresses of one /64 network share a budget.

    Each other network, and each text that is not an address, has a separate budget.
    """
    budget = FailureBudget()
    for number in range(int(BURST) + 5):
        budget.fail(f"2001:db8::{number:x}", 0.0)
        budget.fail("::odd::", 0.0)
        budget.fail("::ffff:10.0.0.1", 0.0)

    assert budget.wait_seconds("2001:db8::ffff%eth0", 0.0) > 0
    assert budget.wait_seconds("::ffff:10.0.0.1", 0.0) > 0
    assert budget.wait_seconds("::ffff:10.0.0.2", 0.0) == 0
    assert budget.wait_seconds("2001:db8:0:1::1", 0.0) == 0
    assert budget.wait_seconds("::odd::", 0.0) > 0


def test_the_number_of_addresses_is_bounded() -> None:
    """If there are too many addresses, the address with the oldest failure is forgotten first."""
    budget = FailureBudget()
    for _ in range(int(BURST) + 1):
        budget.fail("a", 0.0)
    for number in range(ADDRESSES_MAX):
        budget.fail(f"b{number}", 0.0)

    assert budget.wait_seconds("a", 0.0) == 0
