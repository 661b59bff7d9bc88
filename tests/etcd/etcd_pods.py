"""Real members of etcd in place of pods: a small StatefulSet manages processes, and claims are folders.

The actions that the plan of a managed etcd requests are executed as Kubernetes would execute them, so that etcd itself
checks the plan. A process that ends is restarted with the same arguments, as a kubelet would.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from etcd_cluster import QUICK_DISK, TOGETHER, EtcdMember, free_ports
from fairlead_operator.certificates.authority import new_authority, new_certificate
from fairlead_operator.clock import SystemClock
from fairlead_operator.etcd_members import EtcdError, EtcdMembersClient
from fairlead_operator.etcd_members.tls import context_of
from fairlead_operator.naming import Scheme
from fairlead_operator.plan.etcd import PLACES, plan_etcd
from fairlead_operator.plan.etcd_actions import (
    AddLearner,
    DeleteEtcdClaim,
    DeleteEtcdPod,
    DisarmNoSpace,
    EtcdAction,
    EtcdPlan,
    MoveMember,
    PromoteLearner,
    RecordMember,
    RemoveMember,
    TransferLeadership,
)
from fairlead_operator.plan.etcd_observed import EtcdClaim, EtcdPod, EtcdSet, EtcdStatus, ObservedEtcd
from fairlead_operator.plan.etcd_view import EtcdPlace, EtcdWish
from fairlead_operator.plan.securing.etcd_transport import plan_etcd_transport
from fairlead_operator.render.etcd import secure_arguments
from fairlead_operator.render.inputs import EtcdInputs
from waiting import pause

PAUSE_SECONDS = 0.1
CONVERGE_SECONDS = 60.0


@dataclass
class RunningPod:
    """A pod and its process."""

    seen: EtcdPod
    claim_uid: str
    process: EtcdMember

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.process is not None and self.process.process.poll() is None


class EtcdPods:
    """One managed etcd on loopback addresses."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports()
        self._ports = [(next(ports), next(ports)) for _ in range(PLACES)]
        self._tls_ports = [(next(ports), next(ports)) for _ in range(PLACES)]
        self._folder = folder
        self._tls: EtcdMembersClient | None = None
        self.wants_tls = False
        self.broker_schemes: frozenset[Scheme] = frozenset()
        self._uids = count(1)
        self.client = EtcdMembersClient(deadline_seconds=2.0)
        self.live: EtcdSet | None = None
        self.pods: dict[int, RunningPod] = {}
        self.claims: dict[int, EtcdClaim] = {}
        self.orders: list[EtcdAction] = []
        """All actions that were planned and executed, except records of members."""
        self.unschedulable: set[int] = set()
        self.quota_bytes = 64 << 20
        """Quota of a store in the template; a test that enlarges volumes increases the quota."""

    def wish(self, replicas: int, pod_spec_hash: str = "first") -> EtcdWish:
        """Return the requested state of etcd: a number of members at the addresses of this object."""
        places = tuple(
            EtcdPlace(f"member-{ordinal}", f"http://127.0.0.1:{peer}")
            for ordinal, (_, peer) in enumerate(self._ports)
        )
        return EtcdWish(replicas, pod_spec_hash, places)

    def url(self, ordinal: int) -> str:
        """Return the URL of a member for clients."""
        pod = self.pods.get(ordinal)
        return self.url_by("https" if pod is not None and pod.seen.phase == "tls" else "http", ordinal)

    def url_by(self, scheme: Scheme, ordinal: int) -> str:
        """Return a member's URL for clients, with the given scheme."""
        ports = self._ports if scheme == "http" else self._tls_ports
        return f"{scheme}://127.0.0.1:{ports[ordinal][0]}"

    @property
    def certificates(self) -> Path:
        """The folder with the certificate of all members, which clients use as well."""
        folder = self._folder / "certificates"
        if not folder.exists():
            folder.mkdir(parents=True)
            now = SystemClock().now()
            authority = new_authority("test", now)
            pair = new_certificate(authority, "test", ["127.0.0.1", "localhost"], now)
            for name, content in (
                ("ca.crt", authority.certificate),
                ("tls.crt", pair.certificate),
                ("tls.key", pair.key),
            ):
                (folder / name).write_bytes(content)
        return folder

    def calls(self, ordinal: int) -> EtcdMembersClient:
        """Return the client for a member."""
        if self.url(ordinal).startswith("http://"):
            return self.client
        if self._tls is None:
            self._tls = self.client.with_tls(context_of(self.certificates))
        return self._tls

    async def bring(self, wish: EtcdWish, until: Callable[[EtcdPlan], bool] | None = None) -> EtcdPlan:
        """Run passes until etcd is as requested, or until another condition is true; return the last plan."""
        met = until or (lambda plan: plan.verdict.reason == "Healthy" and plan.requeue_seconds is None)
        async with asyncio.timeout(CONVERGE_SECONDS):
            while True:
                plan = await self.step(wish)
                if met(plan):
                    return plan
                await pause(PAUSE_SECONDS)

    async def step(self, wish: EtcdWish) -> EtcdPlan:
        """Run one pass of a reconcile."""
        observed = await self.look()
        if self.wants_tls or self.broker_schemes:
            wish = self._secured(wish, observed)
        plan = plan_etcd(wish, observed)
        assert plan.inputs is not None
        self._apply(wish, plan.inputs)
        for action in plan.actions:
            try:
                await self._carry_out(action)
            except EtcdError:
                # etcd refused, for example because the last change is too recent; the next pass plans the action again.
                break
            if not isinstance(action, RecordMember):
                self.orders.append(action)
        self._keep_pods()
        return plan

    async def look(self) -> ObservedEtcd:
        """Return the existing pods and volumes, and the answers from the members."""
        answers: dict[int, EtcdStatus] = {}
        for ordinal in self.pods:
            with suppress(EtcdError):
                answers[ordinal] = await self.calls(ordinal).status(self.url(ordinal))
        members = None
        for ordinal, answer in answers.items():
            if members is None and answer.leader_id and not answer.learner:
                with suppress(EtcdError):
                    members = await self.calls(ordinal).members(self.url(ordinal))
        pods = {
            ordinal: replace(pod.seen, ready=ordinal in answers and answers[ordinal].healthy_but_full)
            for ordinal, pod in self.pods.items()
        }
        return ObservedEtcd(
            self.live, pods, dict(self.claims), members, answers, broker_schemes=self.broker_schemes
        )

    def _secured(self, wish: EtcdWish, observed: ObservedEtcd) -> EtcdWish:
        """Return the requested state with the next step to TLS, or back from it."""
        transport = plan_etcd_transport(observed, tls=self.wants_tls, authorities="one")
        urls: dict[Scheme, list[str]] = {
            "http": [f"http://127.0.0.1:{peer}" for _, peer in self._ports],
            "https": [f"https://127.0.0.1:{peer}" for _, peer in self._tls_ports],
        }
        here = transport.peer_scheme
        places = tuple(
            EtcdPlace(place.name, mine, other)
            for place, mine, other in zip(
                wish.places, urls[here], urls["http" if here == "https" else "https"], strict=True
            )
        )
        return replace(
            wish,
            places=places,
            transport=transport,
            pod_spec_hash=f"{wish.pod_spec_hash}-{transport.phase}",
        )

    def lose(self, ordinal: int) -> None:
        """Remove a pod and its volume at once."""
        self._delete_pod(ordinal)
        self._delete_claim(ordinal)

    async def close(self) -> None:
        """Stop all processes."""
        await self.client.close()
        for pod in self.pods.values():
            pod.process.kill()

    def _apply(self, wish: EtcdWish, inputs: EtcdInputs) -> None:
        self.live = EtcdSet(
            inputs.replicas,
            inputs.initial_cluster,
            inputs.state,
            pod_spec_hash=wish.pod_spec_hash,
            quota_bytes=self.quota_bytes,
            phase=wish.transport.phase,
        )

    async def _carry_out(self, action: EtcdAction) -> None:
        number = await self._speaker()
        speaker, calls = self.url(number), self.calls(number)
        match action:
            case RecordMember(ordinal, uid, member_id):
                assert self.claims[ordinal].uid == uid
                self.claims[ordinal] = replace(self.claims[ordinal], member_id=member_id)
            case AddLearner(_, peer_url):
                await calls.add_learner(speaker, peer_url)
            case PromoteLearner(_, member_id):
                await calls.promote(speaker, member_id)
            case RemoveMember(_, member_id):
                await calls.remove(speaker, member_id)
            case MoveMember(_, member_id, peer_url):
                await calls.move(speaker, member_id, peer_url)
            case TransferLeadership(leader, _, target_id):
                await self.calls(leader).transfer_leadership(self.url(leader), target_id)
            case DeleteEtcdPod(ordinal):
                self._delete_pod(ordinal)
            case DeleteEtcdClaim(ordinal):
                self._delete_claim(ordinal)
            case DisarmNoSpace(ordinal):
                await self.calls(ordinal).disarm_no_space(self.url(ordinal))

    async def _speaker(self) -> int:
        """Return the ordinal of the leader, or of the first pod if there is no leader."""
        for ordinal in self.pods:
            with suppress(EtcdError):
                status = await self.calls(ordinal).status(self.url(ordinal))
                if status.leader_id == status.member_id:
                    return ordinal
        return 0

    def _keep_pods(self) -> None:
        """Do the work of the StatefulSet controller and of the kubelet."""
        assert self.live is not None
        for ordinal in [each for each in self.pods if each >= self.live.replicas]:
            self._delete_pod(ordinal)
        for ordinal in range(self.live.replicas):
            if ordinal not in self.pods and ordinal not in self.unschedulable:
                self.pods[ordinal] = self._new_pod(ordinal, self.live)
        for pod in self.pods.values():
            if not pod.alive:
                pod.process.start()

    def _new_pod(self, ordinal: int, live: EtcdSet) -> RunningPod:
        if ordinal not in self.claims:
            self.claims[ordinal] = EtcdClaim(f"claim-{next(self._uids)}")
        uid = self.claims[ordinal].uid
        client, peer = self._ports[ordinal]
        process = EtcdMember(
            f"member-{ordinal}", self._folder / uid, client, peer, "http", live.initial_cluster
        )
        process.arguments = (
            *TOGETHER,
            *QUICK_DISK,
            f"--initial-cluster-state={live.state}",
            f"--quota-backend-bytes={live.quota_bytes}",
            *self._listeners(ordinal, live),
        )
        seen = EtcdPod(
            f"pod-{next(self._uids)}",
            initial_cluster=live.initial_cluster,
            state=live.state,
            pod_spec_hash=live.pod_spec_hash,
            quota_bytes=live.quota_bytes,
            phase=live.phase,
        )
        return RunningPod(seen, uid, process)

    def _listeners(self, ordinal: int, live: EtcdSet) -> list[str]:
        """Return the arguments of a member with TLS, which replace the arguments without TLS."""
        if live.phase == "plain":
            return []
        plain = [f"http://127.0.0.1:{port}" for port in self._ports[ordinal]] if live.phase == "both" else []
        secure = [f"https://127.0.0.1:{port}" for port in self._tls_ports[ordinal]]
        clients, peers = [*plain[:1], secure[0]], [*plain[1:], secure[1]]
        members = dict(each.split("=", 1) for each in live.initial_cluster.split(","))
        joins = members.get(f"member-{ordinal}", secure[1])
        return [
            f"--listen-client-urls={','.join(clients)}",
            f"--advertise-client-urls={','.join(clients)}",
            f"--listen-peer-urls={','.join(peers)}",
            f"--initial-advertise-peer-urls={joins}",
            *secure_arguments(str(self.certificates)),
        ]

    def _delete_pod(self, ordinal: int) -> None:
        pod = self.pods.pop(ordinal, None)
        if pod is not None:
            pod.process.kill()

    def _delete_claim(self, ordinal: int) -> None:
        claim = self.claims.pop(ordinal, None)
        if claim is not None:
            shutil.rmtree(self._folder / claim.uid, ignore_errors=True)
