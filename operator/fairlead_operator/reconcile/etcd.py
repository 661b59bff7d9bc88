"""One step of a Cluster's etcd: observes pods, claims and members, makes a plan, and executes the actions.

The reconciler of Clusters calls `look` before the objects are rendered, and `act` after the objects were applied.
Decisions that depend on the answers of members are made by `plan.etcd`. A failed call stops only the current step, and
the next pass observes the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from ssl import SSLContext
from typing import Any, Final, TypeAlias, assert_never
from urllib.parse import urlsplit

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_parts import ExternalEtcd
from fairlead_api.resources.cluster_status import EtcdRestartStatus
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import condition, rfc3339
from fairlead_operator.etcd_members import EtcdError, EtcdMembersClient, LearnerNotInSync
from fairlead_operator.etcd_members.tls import context_in_memory
from fairlead_operator.naming import (
    BROKER_COMPONENT,
    CLAIM,
    COMPONENT_LABEL,
    DELETE_POD_AND_CLAIM_ANNOTATION,
    ETCD_AUTHORITIES_ANNOTATION,
    ETCD_COMPONENT,
    ETCD_CONTAINER,
    ETCD_MEMBER_ANNOTATION,
    ETCD_SCHEME_ANNOTATION,
    ETCD_TRANSPORT_ANNOTATION,
    POD,
    POD_SPEC_HASH_ANNOTATION,
    RESTART_ANNOTATION,
    Kind,
    Manifest,
    ObjectRef,
    Scheme,
    etcd_claim_name,
    etcd_member_name,
    etcd_name,
)
from fairlead_operator.plan.cluster import EtcdFacts
from fairlead_operator.plan.etcd import PLACES, etcd_wish, plan_etcd
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
from fairlead_operator.plan.etcd_health import plan_external
from fairlead_operator.plan.etcd_observed import (
    EtcdClaim,
    EtcdMember,
    EtcdPod,
    EtcdRestart,
    EtcdSet,
    EtcdStatus,
    ObservedEtcd,
)
from fairlead_operator.plan.observed import observe_claim
from fairlead_operator.plan.scale import size_of
from fairlead_operator.plan.securing.certificates import Certificates
from fairlead_operator.plan.securing.etcd_transport import plan_etcd_transport
from fairlead_operator.ports import Conflict, KubernetesApi, NotFound
from fairlead_operator.render.etcd import INITIAL_CLUSTER, INITIAL_STATE, quota_argument
from fairlead_operator.render.inputs import EtcdPhase, Images
from fairlead_operator.telemetry import Log

MemberChange: TypeAlias = AddLearner | PromoteLearner | RemoveMember | MoveMember
RESTART_PATIENCE: Final = timedelta(minutes=5)
"""Time after the start of a restart during which an unhealthy member counts as restarting."""


@dataclass(frozen=True, slots=True)
class EtcdSecurity:
    """Security of a managed etcd: whether TLS is desired, and the certificates."""

    wanted: bool
    certificates: Certificates


@dataclass(frozen=True, slots=True)
class EtcdLook:
    """The observed state of etcd in one pass, and the plan for this state."""

    observed: ObservedEtcd
    plan: EtcdPlan
    urls: Mapping[int, str] = field(default_factory=dict)
    """URL of each member, including members that do not run."""
    calls: EtcdMembersClient | None = None
    """Client for the calls of the plan; None if the plan has no calls."""

    def facts(
        self, cluster: Cluster, now: datetime, done: Sequence[EtcdAction], generation: int
    ) -> EtcdFacts:
        """Return the facts about etcd for the status of the Cluster; `done` contains the executed actions."""
        verdict = self.plan.verdict
        restart = self.plan.restart
        for action in done:
            if isinstance(action, DeleteEtcdPod):
                restart = EtcdRestart(action.ordinal, action.reason, rfc3339(now))
        row = restart and EtcdRestartStatus(
            name=etcd_member_name(cluster.name, restart.ordinal), reason=restart.reason, since=restart.since
        )
        return EtcdFacts(
            status=self.plan.status.model_copy(update={"restart": row}),
            condition=condition(
                ConditionName.ETCD_HEALTHY,
                verdict.status,
                verdict.reason,
                verdict.message,
                now=now,
                generation=generation,
            ),
            refused=self.observed.refused,
            changes=self.plan.changes,
        )


class EtcdStep:
    """Steps of etcd for all Clusters; no state except TLS contexts is kept between two passes."""

    def __init__(
        self, api: KubernetesApi, members: EtcdMembersClient, *, url: str, tls_url: str, log: Log
    ) -> None:
        """Create the step; `url` is the template of a member's URL, with {pod}, {cluster}, {namespace} and {id}.

        `tls_url` is the template for members with TLS only.
        """
        self._api = api
        self._members = members
        self._url = url
        self._tls_url = tls_url
        self._log = log
        self._contexts: dict[tuple[str, str], tuple[tuple[str, bytes, bytes], SSLContext]] = {}

    def forget(self, namespace: str, cluster: str) -> None:
        """Drop the certificates of a deleted Cluster."""
        self._contexts.pop((namespace, cluster), None)

    async def look(
        self,
        cluster: Cluster,
        images: Images,
        *,
        sets: Iterable[Manifest],
        pods: Iterable[Manifest],
        claims: Iterable[Manifest],
        refusals: Mapping[str, Mapping[int, str]],
        now: datetime,
        secure: EtcdSecurity | None = None,
    ) -> EtcdLook:
        """Return the next step for a Cluster's etcd, computed from live objects and the members' answers.

        `refusals` contains the messages from the API server about refused pods, keyed by StatefulSet and ordinal.
        Objects of other components are ignored. A member that does not answer is not treated as an error.
        """
        if cluster.spec.etcd.external is not None:
            return await self._look_at_external(cluster.spec.etcd.external)
        pods, sets = list(pods), list(sets)
        by_ordinal = _by_ordinal(pods, partial(etcd_member_name, cluster.name))
        claims_by_ordinal = _by_ordinal(claims, partial(etcd_claim_name, cluster.name))
        running = [ordinal for ordinal, pod in by_ordinal.items() if _may_answer(pod)]
        calls = await self._calls(cluster, secure)
        urls = {
            ordinal: self._url_of(cluster, ordinal, by_ordinal.get(ordinal))
            for ordinal in {*range(PLACES), *by_ordinal}
        }
        answers = await self._ask({ordinal: urls[ordinal] for ordinal in running}, calls)
        observed = ObservedEtcd(
            live=next((_set(each) for each in sets if _is_etcd(each)), None),
            pods={ordinal: _pod(pod) for ordinal, pod in by_ordinal.items()},
            claims={ordinal: _claim(claim) for ordinal, claim in claims_by_ordinal.items()},
            members=await self._list(urls, answers, calls),
            answers=answers,
            broker_schemes=frozenset(map(_etcd_scheme, filter(_is_broker, (*sets, *pods)))),
            restart=_restart_before(cluster, now),
            refused=next(iter(refusals.get(etcd_name(cluster.name), {}).values()), ""),
        )
        transport = plan_etcd_transport(
            observed,
            tls=secure is not None and secure.wanted,
            authorities="" if secure is None else secure.certificates.etcd_authorities,
        )
        plan = plan_etcd(etcd_wish(cluster, images, transport), observed)
        return EtcdLook(observed, plan, urls, calls)

    async def act(self, cluster: Cluster, about: Manifest, look: EtcdLook) -> list[EtcdAction]:
        """Execute the actions in order until the first failure; return the successful actions.

        Raises `ApiError` if Kubernetes does not answer. Events refer to `about`, the manifest of the Cluster.
        """
        done = list[EtcdAction]()
        for action in look.plan.actions:
            try:
                await self._carry_out(cluster, action, look)
            except LearnerNotInSync as early:
                self._log.debug("learner has not caught up yet", cluster=_subject(cluster), why=str(early))
                return done
            except (EtcdError, Conflict, NotFound) as error:
                self._log.info(
                    "etcd step not finished; the next pass tries again",
                    cluster=_subject(cluster),
                    action=str(action),
                    why=str(error),
                )
                return done
            done.append(action)
            if event := _event_of(cluster, action):
                self._log.info("etcd changed", cluster=_subject(cluster), action=str(action))
                await self._api.event(about, "Normal", *event)
        return done

    # -- observation

    async def _look_at_external(self, external: ExternalEtcd) -> EtcdLook:
        plain = {
            number: url
            for number, url in enumerate(external.endpoints)
            if urlsplit(url).scheme == "http" and external.secret_name is None
        }
        answers = await self._ask(plain, self._members)
        by_url = {external.endpoints[number]: answer for number, answer in answers.items()}
        return EtcdLook(
            ObservedEtcd(), plan_external(external.endpoints, by_url, asked=tuple(plain.values()))
        )

    async def _ask(self, urls: Mapping[int, str], calls: EtcdMembersClient) -> dict[int, EtcdStatus]:
        """Read the status of all members concurrently, so that several unresponsive members cost only one deadline."""
        statuses = await asyncio.gather(*(self._status(url, calls) for url in urls.values()))
        return {ordinal: status for ordinal, status in zip(urls, statuses, strict=True) if status is not None}

    async def _status(self, url: str, calls: EtcdMembersClient) -> EtcdStatus | None:
        try:
            return await calls.status(url)
        except EtcdError as error:
            self._log.debug("etcd member does not answer", url=url, why=str(error))
            return None

    async def _list(
        self, urls: Mapping[int, str], answers: Mapping[int, EtcdStatus], calls: EtcdMembersClient
    ) -> tuple[EtcdMember, ...] | None:
        for ordinal, answer in sorted(answers.items()):
            if answer.leader_id == 0 or answer.learner:
                continue
            try:
                return await calls.members(urls[ordinal])
            except EtcdError as error:
                self._log.debug("etcd member did not list the members", url=urls[ordinal], why=str(error))
        return None

    def _url_of(self, cluster: Cluster, ordinal: int, pod: Manifest | None) -> str:
        url = self._tls_url if pod is not None and _phase(pod) == "tls" else self._url
        name = etcd_member_name(cluster.name, ordinal)
        return url.format(pod=name, cluster=cluster.name, namespace=cluster.namespace, id=ordinal)

    async def _calls(self, cluster: Cluster, secure: EtcdSecurity | None) -> EtcdMembersClient:
        """Return the client for the members, with the certificates of the Cluster if there are any."""
        if secure is None or not all(secure.certificates.etcd_client):
            return self._members
        key = (cluster.namespace, cluster.name)
        material = (secure.certificates.authorities, *secure.certificates.etcd_client)
        held = self._contexts.get(key)
        if held is None or held[0] != material:
            held = self._contexts[key] = (material, await asyncio.to_thread(context_in_memory, *material))
        return self._members.with_tls(held[1])

    # -- actions

    async def _carry_out(self, cluster: Cluster, action: EtcdAction, look: EtcdLook) -> None:
        calls = look.calls
        assert calls is not None, f"the etcd of {cluster.name} is managed"
        match action:
            case RecordMember(ordinal, uid, member_id):
                annotations = {ETCD_MEMBER_ANNOTATION: member_id}
                # The uid limits the patch to the observed claim, so a new claim of the same name is not patched.
                patch = {"metadata": {"uid": uid, "annotations": annotations}}
                await self._api.patch(_ref(CLAIM, cluster, etcd_claim_name(cluster.name, ordinal)), patch)
            case DeleteEtcdClaim(ordinal, uid):
                await self._api.delete(_ref(CLAIM, cluster, etcd_claim_name(cluster.name, ordinal)), uid=uid)
            case DeleteEtcdPod(ordinal, uid):
                await self._api.delete(_ref(POD, cluster, etcd_member_name(cluster.name, ordinal)), uid=uid)
            case TransferLeadership(leader, _, target_id):
                await calls.transfer_leadership(look.urls[leader], target_id)
            case DisarmNoSpace(ordinal):
                await calls.disarm_no_space(look.urls[ordinal])
            case AddLearner() | PromoteLearner() | RemoveMember() | MoveMember():
                await _change(calls, action, look.urls[_speaker(look.observed, action)])
            case _:
                assert_never(action)


async def _change(calls: EtcdMembersClient, action: MemberChange, url: str) -> None:
    match action:
        case AddLearner(_, peer_url):
            await calls.add_learner(url, peer_url)
        case PromoteLearner(_, member_id):
            await calls.promote(url, member_id)
        case RemoveMember(_, member_id):
            await calls.remove(url, member_id)
        case MoveMember(_, member_id, peer_url):
            await calls.move(url, member_id, peer_url)
        case _:
            assert_never(action)


def _restart_before(cluster: Cluster, now: datetime) -> EtcdRestart | None:
    """Return the restart of an etcd member that is recorded in the status; None if no restart is recorded."""
    etcd = cluster.status.etcd
    if etcd is None or etcd.restart is None:
        return None
    ordinal = etcd.restart.name.rpartition("-")[2]
    if not ordinal.isdigit():
        return None
    overdue = datetime.fromisoformat(etcd.restart.since) + RESTART_PATIENCE <= now
    return EtcdRestart(int(ordinal), etcd.restart.reason, etcd.restart.since, overdue)


def _speaker(observed: ObservedEtcd, action: MemberChange) -> int:
    """Return the ordinal of a healthy voter to call: the leader, another voter or, last, the member to be changed."""
    able = {
        ordinal: answer
        for ordinal, answer in observed.answers.items()
        if answer.leader_id and not answer.learner and ordinal != action.ordinal
    }
    leads = [ordinal for ordinal, answer in able.items() if answer.leader_id == answer.member_id]
    candidates = leads or sorted(able)
    # The call is sent to the member that is to be changed only if no other voter is healthy.
    return candidates[0] if candidates else action.ordinal


def _event_of(cluster: Cluster, action: EtcdAction) -> tuple[str, str] | None:
    """Return the reason and the message of the Event for an action; None for an action without an Event."""
    match action:
        case RecordMember():
            return None
        case AddLearner(ordinal, _, reason):
            word, what = "EtcdMemberAdded", f"joins as a learner: {reason}"
        case PromoteLearner(ordinal):
            word, what = "EtcdMemberPromoted", "has caught up and is now a voting member"
        case RemoveMember(ordinal, member_id, reason):
            word, what = "EtcdMemberRemoved", f"(id {member_id:x}) is removed from etcd: {reason}"
        case MoveMember(ordinal, _, peer_url):
            word, what = "EtcdMemberMoved", f"is reached by other members at {peer_url}"
        case TransferLeadership(ordinal, target):
            word, what = (
                "EtcdLeaderMoved",
                f"transfers leadership to {etcd_member_name(cluster.name, target)}",
            )
        case DeleteEtcdPod(ordinal, _, reason):
            word, what = "EtcdMemberRestarted", f"is restarted: {reason}"
        case DeleteEtcdClaim(ordinal, _, reason):
            word, what = "EtcdVolumeDeleted", f"loses its volume: {reason}"
        case DisarmNoSpace(ordinal):
            word, what = (
                "EtcdAlarmDisarmed",
                "and the other members accept writes again: their stores have space",
            )
        case _:
            assert_never(action)
    return word, f"{etcd_member_name(cluster.name, ordinal)} {what}"


def _is_etcd(manifest: Manifest) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return bool(labels.get(COMPONENT_LABEL) == ETCD_COMPONENT)


def _by_ordinal(manifests: Iterable[Manifest], name_of: Callable[[int], str]) -> dict[int, Manifest]:
    """Return the members' objects keyed by the ordinal in their names; copies with other names are left out."""
    found = dict[int, Manifest]()
    for manifest in filter(_is_etcd, manifests):
        name = str(manifest["metadata"]["name"])
        ordinal = name.rpartition("-")[2]
        if ordinal.isdigit() and name == name_of(int(ordinal)):
            found[int(ordinal)] = manifest
    return found


def _may_answer(pod: Manifest) -> bool:
    """Return whether the pod can answer a call: a pod that has not started has no DNS name yet."""
    return (pod.get("status") or {}).get("phase") == "Running"


def _set(manifest: Manifest) -> EtcdSet:
    template = manifest["spec"]["template"]
    variables = _plain_variables(template["spec"])
    observed = (manifest.get("status") or {}).get("observedGeneration", 0)
    return EtcdSet(
        replicas=int(manifest["spec"].get("replicas", 1)),
        initial_cluster=variables.get(INITIAL_CLUSTER, ""),
        state=variables.get(INITIAL_STATE, ""),
        settled=observed >= manifest["metadata"].get("generation", 0),
        pod_spec_hash=_annotations(template).get(POD_SPEC_HASH_ANNOTATION, ""),
        quota_bytes=quota_argument(_container(template["spec"]).get("args") or ()),
        phase=_phase(template),
    )


def _pod(manifest: Manifest) -> EtcdPod:
    annotations = _annotations(manifest)
    variables = _plain_variables(manifest["spec"])
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return EtcdPod(
        uid=manifest["metadata"]["uid"],
        ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        deleting="deletionTimestamp" in manifest["metadata"],
        initial_cluster=variables.get(INITIAL_CLUSTER, ""),
        state=variables.get(INITIAL_STATE, ""),
        pod_spec_hash=annotations.get(POD_SPEC_HASH_ANNOTATION, ""),
        restart=annotations.get(RESTART_ANNOTATION, ""),
        empty_volume=annotations.get(DELETE_POD_AND_CLAIM_ANNOTATION) == "true",
        created=manifest["metadata"].get("creationTimestamp", ""),
        quota_bytes=quota_argument(_container(manifest["spec"]).get("args") or ()),
        phase=_phase(manifest),
    )


def _claim(manifest: Manifest) -> EtcdClaim:
    seen = observe_claim(manifest)
    assert seen is not None, "claims of members are numbered"
    return EtcdClaim(
        uid=manifest["metadata"]["uid"],
        member_id=_annotations(manifest).get(ETCD_MEMBER_ANNOTATION, ""),
        deleting=seen.terminating,
        size_bytes=int(size_of(seen.requested)),
        growing=size_of(seen.capacity) < size_of(seen.requested),
        waits_for_restart_since=seen.waits_for_restart_since,
    )


def _annotations(manifest: Mapping[str, Any]) -> dict[str, str]:
    return (manifest.get("metadata") or {}).get("annotations") or {}


def _phase(manifest: Mapping[str, Any]) -> EtcdPhase:
    """Return the kinds of listeners in a pod or a template."""
    transport = _annotations(manifest).get(ETCD_TRANSPORT_ANNOTATION)
    return "tls" if transport == "tls" else "both" if transport == "both" else "plain"


def etcd_authorities(pods: Iterable[Manifest]) -> frozenset[str]:
    """Return the fingerprints of the authorities that the members with TLS have read."""
    authorities = (_annotations(pod).get(ETCD_AUTHORITIES_ANNOTATION, "") for pod in filter(_is_etcd, pods))
    return frozenset(filter(None, authorities))


def _etcd_scheme(manifest: Manifest) -> Scheme:
    """Return the scheme of the calls to etcd in a broker's pod, or in the template of a StatefulSet."""
    template = manifest["spec"].get("template") or manifest
    return "https" if _annotations(template).get(ETCD_SCHEME_ANNOTATION) == "https" else "http"


def _is_broker(manifest: Manifest) -> bool:
    labels = manifest["metadata"].get("labels") or {}
    return bool(labels.get(COMPONENT_LABEL) == BROKER_COMPONENT)


def _plain_variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of the container that have plain values."""
    return {each["name"]: str(each.get("value", "")) for each in _container(spec).get("env") or ()}


def _container(spec: Mapping[str, Any]) -> Manifest:
    return next((each for each in spec["containers"] if each["name"] == ETCD_CONTAINER), {})


def _ref(kind: Kind, cluster: Cluster, name: str) -> ObjectRef:
    return ObjectRef(kind, cluster.namespace, name)


def _subject(cluster: Cluster) -> str:
    return f"{cluster.namespace}/{cluster.name}"
