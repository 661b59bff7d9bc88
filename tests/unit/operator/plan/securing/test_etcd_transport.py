from __future__ import annotations

from typing import Any

import pytest

from fairlead_operator.plan.etcd import plan_etcd
from fairlead_operator.plan.etcd_actions import MoveMember
from fairlead_operator.plan.etcd_observed import (
    EtcdClaim,
    EtcdMember,
    EtcdPod,
    EtcdSet,
    EtcdStatus,
    ObservedEtcd,
)
from fairlead_operator.plan.etcd_view import EtcdPlace, EtcdWish
from fairlead_operator.plan.securing.etcd_transport import plan_etcd_transport
from fairlead_operator.render.inputs import EtcdPhase

URLS = {"http": "http://e:2380", "https": "https://e:2480"}


def seen(
    template: EtcdPhase | None = None,
    pods: tuple[EtcdPhase, ...] = (),
    members: tuple[str, ...] | None = (),
    brokers: tuple[Any, ...] = (),
    *,
    ready: bool = True,
) -> ObservedEtcd:
    """Return an observed etcd with the given phases of template and pods, and schemes of members and brokers."""
    return ObservedEtcd(
        live=None if template is None else EtcdSet(len(pods), "", "existing", phase=template),
        pods={n: EtcdPod(f"u{n}", ready=ready, phase=phase) for n, phase in enumerate(pods)},
        members=None
        if members is None
        else tuple(EtcdMember(n, f"e-{n}", (URLS[each],)) for n, each in enumerate(members)),
        broker_schemes=frozenset(brokers),
    )


HTTP, HTTPS, BOTH = ("http", "http"), ("https", "https"), ("both", "both")


@pytest.mark.parametrize(
    ("tls", "observed", "phase", "peers", "brokers"),
    [
        (True, seen(), "tls", "https", "https"),
        (False, seen(), "plain", "http", "http"),
        (True, seen(None, ("plain", "plain")), "both", "http", "http"),
        (True, seen(None, ("plain", "both")), "both", "http", "http"),
        (True, seen("plain", ("plain", "plain"), HTTP, ("http",)), "both", "http", "http"),
        (True, seen("both", ("plain", "both"), HTTP, ("http",)), "both", "http", "http"),
        (True, seen("both", BOTH, HTTP, ("http",), ready=False), "both", "https", "http"),
        (True, seen("both", BOTH, HTTP, ("http",)), "both", "https", "https"),
        (True, seen("both", BOTH, HTTP, ("http", "https"), ready=False), "both", "https", "https"),
        (True, seen("both", BOTH, HTTPS, ("http", "https")), "both", "https", "https"),
        (True, seen("both", BOTH, ("http", "https"), ("https",)), "both", "https", "https"),
        (True, seen("both", BOTH, None, ("https",)), "both", "https", "https"),
        (True, seen("both", BOTH, HTTPS, ("https",)), "tls", "https", "https"),
        (True, seen("tls", ("both", "tls"), HTTPS, ("https",)), "tls", "https", "https"),
        (False, seen("tls", ("tls", "tls"), HTTPS, ("https",)), "both", "https", "https"),
        (False, seen("both", ("both", "tls"), HTTPS, ("https",)), "both", "https", "https"),
        (False, seen("both", BOTH, HTTPS, ("https",)), "both", "http", "http"),
        (False, seen("both", BOTH, HTTP, ("http",)), "plain", "http", "http"),
        (False, seen("both", ("plain", "both"), HTTP, ("http",)), "plain", "http", "http"),
    ],
)
def test_listeners_come_before_their_callers_and_leave_after_them(
    *, tls: bool, observed: ObservedEtcd, phase: str, peers: str, brokers: str
) -> None:
    """Members of etcd first serve both schemes, then the new scheme is used for calls, and the old scheme is dropped.

    TLS for etcd is turned on and off in the same sequence of steps.
    """
    found = plan_etcd_transport(observed, tls=tls, authorities="abc")

    assert (found.phase, found.peer_scheme, found.client_scheme) == (phase, peers, brokers)
    assert found.authorities == ("" if phase == "plain" else "abc")


def test_one_member_moves_at_a_time_while_all_are_healthy() -> None:
    """Peer URLs with the old scheme are changed one member at a time, and only while all members answer."""
    places = tuple(EtcdPlace(f"e-{n}", f"https://e-{n}:2480", f"http://e-{n}:2380") for n in range(5))
    wish = EtcdWish(2, "new", places)

    def actions(*schemes: str, answering: int = 2) -> tuple[object, ...]:
        urls = [f"{scheme}://e-{n}:{2480 if scheme == 'https' else 2380}" for n, scheme in enumerate(schemes)]
        observed = ObservedEtcd(
            live=EtcdSet(2, "", "existing", pod_spec_hash="new"),
            pods={n: EtcdPod(f"u{n}", ready=True, pod_spec_hash="new") for n in range(2)},
            claims={n: EtcdClaim(f"c{n}", f"{10 + n:x}") for n in range(2)},
            members=tuple(EtcdMember(10 + n, f"e-{n}", (url,)) for n, url in enumerate(urls)),
            answers={n: EtcdStatus(10 + n, 10) for n in range(answering)},
        )
        return plan_etcd(wish, observed).actions

    assert actions("http", "http") == (MoveMember(0, 10, "https://e-0:2480"),)
    assert actions("https", "http") == (MoveMember(1, 11, "https://e-1:2480"),)
    assert actions("https", "http", answering=1) == ()
    assert actions("https", "https") == ()
