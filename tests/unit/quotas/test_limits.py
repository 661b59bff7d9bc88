"""A caller has the limits of the most specific quotas, and every matching shared limit (rule Q3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.identifiers import Revision
from fairlead_api.patterns import matches
from fairlead_api.quota_limits import TOPICS, Limit
from fairlead_broker.quotas.limits import BUILT_IN, Quota, QuotaTable, UseKey, partition_quotas, quota_of
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.security_records import QuotaRecord

PRINCIPALS = ("anonymous", "user:a", "user:ab", "user:abc", "k8s:a:b", "__x")
SUBJECTS = (*PRINCIPALS, "*", "user:*", "user:a*", "user:ab*", "k8s:*", "__*")
LIMITS = st.dictionaries(st.sampled_from(list(Limit)[:4]), st.integers(1, 9), max_size=3)
QUOTAS = st.lists(
    st.builds(Quota, st.sampled_from(SUBJECTS), LIMITS, LIMITS), unique_by=lambda quota: quota.subject
)


def naive(quotas: list[Quota], principal: str) -> set[tuple[UseKey, int]]:
    """Return the limits of a principal by a walk over all quotas for each limit."""
    own = {quota.subject for quota in quotas}
    every = [*quotas, *(quota for quota in BUILT_IN if quota.subject not in own)]
    for built_in in BUILT_IN:
        every = [
            Quota(quota.subject, {**built_in.each, **quota.each}, quota.shared)
            if quota.subject == built_in.subject
            else quota
            for quota in every
        ]
    found = set()
    for limit in Limit:
        matching = [quota for quota in every if limit in quota.each and matches(quota.subject, principal)]
        if matching:
            best = max(matching, key=lambda quota: (quota.subject == principal, len(quota.subject)))
            found.add((UseKey(best.subject, limit, principal), best.each[limit]))
    for quota in every:
        if matches(quota.subject, principal):
            found |= {(UseKey(quota.subject, limit), value) for limit, value in quota.shared.items()}
    return found


@given(QUOTAS, st.sampled_from(PRINCIPALS))
def test_limits_equal_those_of_a_naive_walk(quotas: list[Quota], principal: str) -> None:
    """For each limit the most specific quota applies, and every matching shared limit, as in a naive walk."""
    limits = QuotaTable(quotas).of(principal)

    assert {(applied.key, applied.value) for applied in limits} == naive(quotas, principal)
    assert len(limits) == len(set(limits))


def test_use_is_counted_under_the_given_name() -> None:
    """The usage of an anonymous caller is counted by the address of the caller."""
    limits = QuotaTable(()).of("anonymous", "10.0.0.1")
    [concurrent, requests] = sorted(limits, key=lambda each: each.value, reverse=True)

    assert requests.key == UseKey("anonymous", Limit.REQUESTS, "10.0.0.1")
    assert concurrent.key == UseKey("*", Limit.CONCURRENT_REQUESTS, "10.0.0.1")


def test_quotas_of_topics_limit_partitions_only() -> None:
    """A quota for topics limits partitions and no principal, and a limit of a later release is ignored."""
    record = QuotaRecord(shared={"partitions": 7, "later": 1}, changed_us=1, changed_by="user:a")  # type: ignore[arg-type]
    other = QuotaRecord(shared={}, changed_us=1, changed_by="user:a")
    quotas = {
        subject: Versioned(each, Revision(1), Revision(1))
        for subject, each in {f"{TOPICS}shop.*": record, f"{TOPICS}x": other, "*": record}.items()
    }
    table = QuotaTable(quota_of(subject, each.value) for subject, each in quotas.items())

    assert partition_quotas(quotas, "shop.orders") == [(f"{TOPICS}shop.*", 7)]
    assert partition_quotas(quotas, "x") == []
    assert {applied.key.subject for applied in table.of("user:a")} == {"*"}
