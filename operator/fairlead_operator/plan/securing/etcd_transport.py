"""TLS for a managed etcd: its members' listeners, and the URL schemes that members and brokers use to call them.

A new etcd starts with TLS. The members of a running etcd first get listeners with TLS in addition to their listeners
without TLS. After that, the peer URLs of members change to https one at a time, and the brokers restart with https URLs
of etcd. Last, the members restart with TLS listeners only (section 7.3 of the security contract, step 4). To remove
TLS, the same steps are taken with http and https exchanged. The step is derived from live objects and from the member
list alone, so that an interrupted change continues.
"""

from __future__ import annotations

from fairlead_operator.naming import Scheme
from fairlead_operator.plan.etcd_observed import ObservedEtcd
from fairlead_operator.render.inputs import PLAIN_ETCD, EtcdPhase, EtcdTransport


def plan_etcd_transport(observed: ObservedEtcd, *, tls: bool, authorities: str) -> EtcdTransport:
    """Return the listeners and schemes of the next step.

    `tls`: whether TLS is desired. `authorities`: fingerprint of the authorities that members read at startup.
    """
    target: EtcdPhase = "tls" if tls else "plain"
    phase = _phase(observed, target)
    if phase == "plain":
        return PLAIN_ETCD
    if phase == "tls":
        return EtcdTransport("tls", "https", "https", authorities)
    wanted, other = _schemes(target)
    have_both = bool(observed.pods) and all(pod.phase == "both" for pod in observed.pods.values())
    all_ready = have_both and all(pod.ready for pod in observed.pods.values())
    # Brokers that already use the desired scheme keep it while a member restarts.
    changed = wanted in observed.broker_schemes
    return EtcdTransport(
        "both", wanted if have_both else other, wanted if all_ready or changed else other, authorities
    )


def _phase(observed: ObservedEtcd, target: EtcdPhase) -> EtcdPhase:
    now = _current(observed)
    if now is None or now == target:
        return target
    if now != "both":
        return "both"
    wanted, _ = _schemes(target)
    members = observed.members or ()
    moved = bool(members) and all(
        url.startswith(f"{wanted}://") for member in members for url in member.peer_urls
    )
    return target if moved and observed.broker_schemes <= {wanted} else "both"


def _current(observed: ObservedEtcd) -> EtcdPhase | None:
    """Return the listeners in the pod template, or in the pods without a StatefulSet; None for a new etcd."""
    if observed.live is not None:
        return observed.live.phase
    phases = {pod.phase for pod in observed.pods.values()}
    if not phases:
        return None
    return phases.pop() if len(phases) == 1 else "both"


def _schemes(target: EtcdPhase) -> tuple[Scheme, Scheme]:
    return ("https", "http") if target == "tls" else ("http", "https")
