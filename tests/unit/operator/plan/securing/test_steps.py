from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

import render_kit
from fairlead_api.bodies.security import CertificateDescription
from fairlead_api.configuration import ConfigEntry, ConfigSource
from fairlead_api.resources.cluster import Cluster
from fairlead_operator.plan.actions import AlterConfig, RestartReason
from fairlead_operator.plan.observed import BrokersAnswer, Observed
from fairlead_operator.plan.roll import RollPlan
from fairlead_operator.plan.securing.certificates import CertificateFacts, Certificates
from fairlead_operator.plan.securing.steps import (
    brokers_account,
    certificates_condition,
    mode_change,
    overlap_of,
    peer_scheme,
    reports_of,
    until_removed,
)
from plan_kit import NOW, answer, pod, stateful_set

IDLE = RollPlan(pending={}, stuck={})
ROLLING = RollPlan(pending={0: (RestartReason.POD_SPEC_CHANGED,)}, stuck={})
LEAF = CertificateFacts(sha256="leaf", not_before=NOW, not_after=NOW + timedelta(days=90))


def secured(security: dict[str, Any] | None = None, **annotations: str) -> Cluster:
    """Return a Cluster with security."""
    cluster = render_kit.cluster_of(security=security or {})
    named = {f"fairlead.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return cluster.model_copy(update={"metadata": cluster.metadata.model_copy(update={"annotations": named})})


def said(mode: str, source: ConfigSource = ConfigSource.CLUSTER, level: int = 2) -> BrokersAnswer:
    """Return the answer from a broker with a security mode."""
    found = answer([0])
    return replace(
        found, config={**found.config, "security.mode": ConfigEntry(mode, source)}, feature_level=level
    )


def with_certificates(*brokers: int) -> BrokersAnswer:
    """Return the answer of brokers 0 and 1, in which the given brokers report a certificate."""
    certificates = tuple(
        CertificateDescription(
            broker=each, listener=listener, certificate_sha256="leaf", not_after="", authorities_sha256=["ca"],
            in_use=False,
        )
        for each in brokers
        for listener in ("data", "peer")
    )  # fmt: skip
    return replace(answer([0, 1]), certificates=certificates)


@pytest.mark.parametrize(
    ("observed", "scheme"),
    [
        (Observed(now=NOW), "https"),
        (Observed(now=NOW, sets=(stateful_set(2),)), "http"),
        (Observed(now=NOW, sets=(stateful_set(2),), brokers=with_certificates(0)), "http"),
        (Observed(now=NOW, sets=(stateful_set(2),), brokers=with_certificates(0, 1)), "https"),
        (Observed(now=NOW, sets=(stateful_set(2, peer_scheme="https"),)), "https"),
    ],
)
def test_brokers_have_the_certificate_before_they_use_it(observed: Observed, scheme: str) -> None:
    """The peer listeners of an existing Cluster get TLS once every broker reports the authority.

    A new Cluster begins with TLS between brokers.
    """
    assert peer_scheme(observed, ["ca"]) == scheme
    assert reports_of(None).known is False


@pytest.mark.parametrize(
    ("observed", "mode"),
    [
        (Observed(now=NOW, sets=(stateful_set(2),)), None),
        (Observed(now=NOW, sets=(stateful_set(2, peer_scheme="https"),)), "Open"),
        (Observed(now=NOW, sets=(stateful_set(2, peer_scheme="https", terminating=True),)), None),
        (Observed(now=NOW, sets=(stateful_set(2, peer_scheme="http"),)), None),
        (
            Observed(
                now=NOW, sets=(stateful_set(2, peer_scheme="http"),), pods=(pod(0, peer_scheme="https"),)
            ),
            "Open",
        ),
        (
            Observed(
                now=NOW,
                sets=(stateful_set(2, peer_scheme="http"),),
                etcd_set=stateful_set(3, name="main-etcd", pool="", etcd_transport="both"),
            ),
            "Open",
        ),
        (Observed(now=NOW, sets=(stateful_set(2, peer_scheme="http"),), brokers=said("enforce")), "Open"),
        (Observed(now=NOW, sets=(stateful_set(2, peer_scheme="http"),), brokers=said("open")), None),
    ],
)
def test_certificates_stay_until_no_pod_needs_them(observed: Observed, mode: str | None) -> None:
    """A Cluster whose security was removed stays in Open mode until no broker or etcd needs certificates."""
    cluster, secure = render_kit.cluster_of(), secured({"mode": "Enforce", "allowPlaintext": True})
    kept = until_removed(cluster, observed).spec.security

    assert (None if kept is None else kept.mode) == mode
    assert until_removed(secure, observed) is secure


@pytest.mark.parametrize(
    ("mode", "given", "roll", "change"),
    [
        ("Enforce", said("open", ConfigSource.DEFAULT), IDLE, "enforce"),
        ("Enforce", said("open", ConfigSource.DEFAULT), ROLLING, None),
        ("Enforce", said("open", ConfigSource.DEFAULT, level=1), IDLE, None),
        ("Enforce", said("enforce"), IDLE, None),
        ("Observe", said("enforce"), ROLLING, "observe"),
        ("Open", said("enforce"), IDLE, "open"),
        ("Open", said("open", ConfigSource.DEFAULT), IDLE, None),
        ("Enforce", answer([0]), IDLE, None),
        ("Enforce", None, IDLE, None),
    ],
)
def test_a_stricter_mode_waits_for_the_roll(
    mode: str, given: BrokersAnswer | None, roll: RollPlan, change: str | None
) -> None:
    """A stricter mode is set only when all brokers know the superusers, and a less strict mode at once."""
    found = mode_change(secured({"mode": mode, "tls": {"mode": "Both"}}), given, roll)

    assert found == (() if change is None else (AlterConfig({"security.mode": change}),))
    assert mode_change(render_kit.cluster_of(), said("open"), IDLE) == ()


def test_the_condition_names_what_is_missing() -> None:
    """The reason of the certificates' condition follows from the brokers' reports (rule K4)."""

    def reason(certificates: Certificates, brokers: BrokersAnswer | None, days: float = 0) -> str:
        found = certificates_condition(
            secured(), Observed(now=NOW + timedelta(days=days), brokers=brokers), certificates
        )
        assert found is not None
        return found.reason

    current = Certificates(authorities="pem", leaf=LEAF)

    assert certificates_condition(secured(), Observed(now=NOW), None) is None
    assert reason(Certificates(foreign="Secret main-ca"), None) == "NotOurs"
    assert reason(Certificates(missing="Secret main-ca"), None) == "Issuing"
    assert reason(current, None) == "Issuing"
    assert reason(current, with_certificates(0)) == "Propagating"
    assert reason(current, with_certificates(0, 1)) == "Current"
    assert reason(replace(current, held="clients"), with_certificates(0, 1)) == "Propagating"
    assert reason(replace(current, waits="clients"), with_certificates(0, 1)) == "Replacing"
    assert reason(current, with_certificates(0, 1), days=88) == "Expiring"


def test_annotation_and_spec_set_the_overlap() -> None:
    """The spec sets how long a new authority is published before its use, and an annotation skips this time."""
    assert overlap_of(secured({"tls": {"clientOverlap": "5h"}})) == timedelta(hours=5)
    assert overlap_of(secured(skip_overlap="true")) == timedelta()
    assert overlap_of(render_kit.cluster_of()) == timedelta()
    assert brokers_account(secured()) == "k8s:shop:main"
    assert brokers_account(secured({"serviceAccounts": False})) is None
    assert brokers_account(render_kit.cluster_of()) is None
