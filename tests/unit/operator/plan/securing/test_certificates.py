from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import render_kit
from fairlead_operator.plan.securing.certificates import (
    BACKDATED,
    AuthorityStep,
    CertificateFacts,
    Certificates,
    Renewal,
    Report,
    Reports,
    SeenAuthority,
    broker_names,
    etcd_fingerprint,
    etcd_names,
    leaf_is_due,
    leaves_of,
    plan_authority,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def facts(name: str, *, age: timedelta = DAY, life: timedelta = 90 * DAY, by: str = "") -> CertificateFacts:
    """Return the facts about a certificate of the given age, lifetime and signer."""
    begin = NOW - age - BACKDATED
    return CertificateFacts(
        sha256=name,
        key=name,
        authority=by,
        not_before=begin,
        not_after=begin + life,
        names=frozenset({"a", "b"}),
    )


OLD, NEW = facts("old", life=3650 * DAY), facts("new", life=3650 * DAY)
LEAF = facts("leaf", by="old")
BOTH = Reports(
    known=True, registered=frozenset({0, 1}),
    by_broker={each: Report("leaf", frozenset({"old", "new"})) for each in (0, 1)},
)  # fmt: skip
ONE_BEHIND = Reports(
    known=True,
    registered=frozenset({0, 1}),
    by_broker={0: BOTH.by_broker[0], 1: Report("before", frozenset({"old"}))},
)
NONE_REPORTS = Reports(known=True, registered=frozenset({0, 1}))


@pytest.mark.parametrize(
    ("seen", "leaf", "reports", "overlap", "asked", "step", "waits"),
    [
        (SeenAuthority(current=OLD), LEAF, BOTH, DAY, False, "KEEP", ""),
        (SeenAuthority(current=OLD), LEAF, BOTH, DAY, True, "ADD_FOLLOWING", ""),
        (SeenAuthority(current=facts("old", age=DAY * 80)), LEAF, BOTH, DAY, False, "ADD_FOLLOWING", ""),
        (SeenAuthority(current=OLD, following=NEW), LEAF, Reports(), DAY, False, "KEEP", "no broker answers"),
        (SeenAuthority(current=OLD, following=NEW), LEAF, ONE_BEHIND, DAY, True, "KEEP", "broker 1 has"),
        (
            SeenAuthority(current=OLD, following=NEW),
            LEAF,
            NONE_REPORTS,
            DAY,
            True,
            "KEEP",
            "brokers 0, 1 have",
        ),
        (SeenAuthority(current=OLD, following=NEW), LEAF, BOTH, 2 * DAY, False, "KEEP", "clients"),
        (SeenAuthority(current=OLD, following=NEW), LEAF, BOTH, DAY, False, "PROMOTE", ""),
        (SeenAuthority(current=NEW, previous=OLD), None, BOTH, DAY, False, "KEEP", "signed by the new"),
        (SeenAuthority(current=NEW, previous=OLD), LEAF, BOTH, DAY, False, "KEEP", "signed by the new"),
        (SeenAuthority(current=OLD, previous=NEW), LEAF, Reports(), DAY, False, "KEEP", "no broker answers"),
        (SeenAuthority(current=OLD, previous=NEW), LEAF, ONE_BEHIND, DAY, False, "KEEP", "broker 1 has"),
        (
            SeenAuthority(current=OLD, previous=NEW),
            LEAF,
            NONE_REPORTS,
            DAY,
            False,
            "KEEP",
            "brokers 0, 1 have",
        ),
        (SeenAuthority(current=OLD, previous=NEW), LEAF, BOTH, 2 * DAY, False, "KEEP", "clients"),
        (SeenAuthority(current=OLD, previous=NEW), LEAF, BOTH, DAY, False, "DROP_PREVIOUS", ""),
    ],
)
def test_each_phase_of_a_replacement_waits_for_brokers_and_clients(
    seen: SeenAuthority,
    leaf: CertificateFacts | None,
    reports: Reports,
    overlap: timedelta,
    asked: bool,
    step: str,
    waits: str,
) -> None:
    """The next step of a replacement follows from the stored authorities and the brokers' reports (rule K5).

    A plan that waits for brokers names them.
    """
    plan = plan_authority(seen, leaf, reports, Renewal(now=NOW, overlap=overlap, asked=asked))

    assert plan.step is AuthorityStep[step]
    assert plan.waits.startswith(waits) if waits.startswith(("broker", "no")) else waits in plan.waits


def test_a_replacement_waits_for_members_of_etcd() -> None:
    """Each step of a replacement waits until the members of etcd have restarted with its authorities (rule K5)."""
    following = SeenAuthority(current=OLD, following=NEW)
    previous = SeenAuthority(current=NEW, previous=OLD)
    leaf = replace(LEAF, authority=NEW.key)
    calm = Renewal(now=NOW, overlap=timedelta())

    def step(seen: SeenAuthority, leaf: CertificateFacts, *etcd: str) -> str:
        return plan_authority(seen, leaf, replace(BOTH, etcd=frozenset(etcd)), calm).step.name

    assert step(following, LEAF, "before") == step(previous, leaf, "before") == "KEEP"
    assert step(following, LEAF, etcd_fingerprint(following)) == "PROMOTE"
    assert step(previous, leaf, etcd_fingerprint(previous)) == "DROP_PREVIOUS"
    assert step(following, LEAF, etcd_fingerprint(following), "before") == "KEEP"
    alone = (SeenAuthority(current=OLD), following, previous, SeenAuthority(current=NEW))
    assert len(set(map(etcd_fingerprint, alone))) == 4


def test_a_certificate_is_replaced_only_for_a_reason() -> None:
    """A certificate is replaced only if it is missing, is old, lacks a name, or has a different signer (rule K6)."""
    assert not leaf_is_due(LEAF, OLD, ["a"], NOW)
    assert leaf_is_due(None, OLD, ["a"], NOW)
    assert leaf_is_due(LEAF, NEW, ["a"], NOW)
    assert leaf_is_due(LEAF, OLD, ["a", "c"], NOW)
    assert leaf_is_due(LEAF, OLD, ["a"], NOW + 60 * DAY)
    assert Certificates(waits="x").requeue_seconds is not None
    assert Certificates().requeue_seconds is None


def test_certificates_name_services_hosts_and_extra_names() -> None:
    """The brokers' certificate has every name under which clients connect (rule K1).

    The certificate of etcd contains the names of its members.
    """
    listener = {"type": "loadbalancer", "perBroker": True, "advertisedHost": "b{id}.example:443"}
    tls = {"mode": "Both", "extraNames": ["broker.example"]}
    kafka = {"enabled": True, "type": "loadbalancer", "advertisedHost": "k{id}.example"}
    names = broker_names(
        render_kit.cluster_of(listeners={"data": listener, "kafka": kafka}, security={"tls": tls})
    )
    plain = broker_names(render_kit.cluster_of())

    assert {
        "localhost", "*.main-brokers.shop.svc", "main-bootstrap.shop.svc.cluster.local", "main-broker-2.shop.svc",
        "b2.example", "k2.example", "broker.example",
    } <= set(names)  # fmt: skip
    assert "broker.example" not in plain
    assert "*.main-etcd-peers.shop.svc" in etcd_names(render_kit.cluster_of())
    external = render_kit.cluster_of(etcd={"external": {"endpoints": ["http://e:2379"]}})
    assert [each.secret for each in leaves_of(external)] == ["main-brokers-tls"]
    assert [each.secret for each in leaves_of(render_kit.cluster_of())] == [
        "main-brokers-tls", "main-etcd-tls", "main-etcd-client",
    ]  # fmt: skip
