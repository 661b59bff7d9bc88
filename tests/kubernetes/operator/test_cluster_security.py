"""Clusters with security: certificates, tokens and access rules of real brokers with the settings of their pods."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from broker_processes import processes_of
from certificate_kit import Authority
from cluster_words import a_cluster, condition_of, is_done
from etcd_build import etcd_binaries
from fairlead import Admin
from fairlead.errors import FairleadError
from fairlead_api.identifiers import TimestampUs
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import ClusterRecord, encode
from fairlead_operator.naming import coordination_name
from operator_process import ACCOUNT, OperatorProcess
from pod_brokers import PodBrokers, begin_to_follow
from warm_programs import FAIRLEAD

if TYPE_CHECKING:
    from kube_client import KubeClient, Manifest
    from kubernetes_under_test import Kubernetes
    from operator_process import Operators

CLUSTER = "clusters.fairlead.dev/main"
SLOW_SECONDS = 150.0
WITH_SECURITY = 2
"""Lowest feature level with tokens and access rules; a level is raised one step at a time."""
NAMES = [f"127.0.1.{broker}" for broker in range(3)]
pytestmark = pytest.mark.timeout(600)


@dataclass(slots=True)
class Secure:
    """One namespace with brokers, and an operator that manages it."""

    kubernetes: Kubernetes
    operators: Operators
    namespace: str
    brokers: PodBrokers
    folder: Path
    identity: Path | None = None
    """Folder with the certificate of clients; None if clients have none."""

    @property
    def api(self) -> KubeClient:
        """The API server."""
        return self.kubernetes.api

    def start_operator(self, *others: str) -> None:
        """Start an operator with the chart's rights outside the box, in the network of the brokers.

        `others`: further namespaces that the operator watches.
        """
        watch = (self.namespace, *others) if others else ()
        user = self.operators.grant(self.namespace, scope="list" if others else "own", watch=watch)
        kubeconfig = self.kubernetes.account_kubeconfig(ACCOUNT, self.namespace)
        settings = {
            "FAIRLEAD_OPERATOR_NAMESPACES": ",".join(watch),
            "FAIRLEAD_OPERATOR_ROLE_BINDING": f"{self.namespace}-{ACCOUNT}-listed" if others else "",
            "FAIRLEAD_OPERATOR_POD_NAMESPACE": self.namespace,
            "FAIRLEAD_OPERATOR_SERVICE_ACCOUNT": ACCOUNT,
            "FAIRLEAD_OPERATOR_BROKER_URL": self.brokers.url,
            "FAIRLEAD_OPERATOR_BROKER_TLS_URL": self.brokers.tls_url,
            "FAIRLEAD_OPERATOR_RESYNC_SECONDS": "5",
            "FAIRLEAD_OPERATOR_METRICS_LISTEN": "127.0.0.1:0",
            "FAIRLEAD_OPERATOR_LOG_FORMAT": "json",
        }
        self.operators.started.append(
            OperatorProcess(
                [FAIRLEAD, "operator", "start"],
                {**self.kubernetes.environment(kubeconfig), **settings},
                self.operators.folder / f"operator-{len(self.operators.started)}.log",
                user,
            )
        )

    def apply(self, security: Manifest | None) -> None:
        """Apply the Cluster with one broker, or with a different `spec.security`."""
        etcd = {"external": {"endpoints": list(self.brokers.etcd)}}
        spec: Manifest = {} if security is None else {"security": security}
        self.api.apply(a_cluster(1, etcd=etcd, **spec), self.namespace)

    def wait(self, holds: Callable[[Manifest | None], Any], seconds: float = SLOW_SECONDS) -> Manifest:
        """Wait until the Cluster satisfies a condition."""
        return self.api.wait(CLUSTER, self.namespace, holds, seconds)

    def user(self, name: str, namespace: str | None = None, **spec: Any) -> Manifest:
        """Apply a User in the Cluster's or in another namespace, and wait until it is ready or refused."""
        self.api.apply(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "User",
                "metadata": {"name": name},
                "spec": {"clusterRef": {"name": "main", "namespace": self.namespace}, **spec},
            },
            namespace or self.namespace,
        )
        return self.wait_for_user(
            name,
            namespace,
            # A call that brokers did not answer is repeated.
            lambda ready, is_seen: (
                is_seen
                and ready.get("status") in ("True", "False")
                and ready.get("reason") != "ClusterNotReady"
            ),
        )

    def wait_for_user(
        self, name: str, namespace: str | None, holds: Callable[[Manifest, bool], Any]
    ) -> Manifest:
        """Wait until a condition holds for the condition Ready of a User, and for whether its spec has been seen."""
        return self.api.wait(
            f"users.fairlead.dev/{name}",
            namespace or self.namespace,
            lambda each: each and holds(_ready(each), _is_seen(each)),
            SLOW_SECONDS,
        )

    def secret(self, name: str, namespace: str | None = None) -> dict[str, bytes]:
        """Return the content of a Secret."""
        found = self.api.get(f"secret/{name}", namespace or self.namespace)
        return {} if found is None else {key: base64.b64decode(each) for key, each in found["data"].items()}

    def call(self, url: str, token: bytes | None, action: Callable[[Admin], Any]) -> Any:
        """Make a call with a token, trusting the authorities in the ConfigMap."""
        file = self.folder / "ca.crt"
        bundle = self.api.get("configmap/main-ca", self.namespace)
        if bundle is not None:
            file.write_text(bundle["data"]["ca.crt"])
        return self.brokers.runner.run(
            _called(url, file if url.startswith("https") else None, token, self.identity, action)
        )

    def metrics(self, token: bytes | None) -> int:
        """Scrape a broker over TLS, with or without a token; return the status."""
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        connection = HTTPSConnection("127.0.1.0", self.brokers.port(9522), context=context)
        connection.request(
            "GET", "/metrics", headers={} if token is None else {"Authorization": f"Bearer {token.decode()}"}
        )
        status = connection.getresponse().status
        connection.close()
        return status


async def _called(
    url: str, ca: Path | None, token: bytes | None, identity: Path | None, action: Callable[[Admin], Any]
) -> Any:
    text = None if token is None else token.decode()
    certificate, key = (None, None) if identity is None else (identity / "tls.crt", identity / "tls.key")
    async with Admin(
        url,
        ca_file=ca,
        client_cert_file=certificate,
        client_key_file=key,
        retry_timeout="5s",
        token=text,
        allow_insecure_token=True,
    ) as admin:
        return await action(admin)


def _ready(resource: Manifest) -> Manifest:
    conditions = (resource.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "Ready"), {})


def _is_seen(resource: Manifest) -> bool:
    """Return whether the status describes the current spec."""
    seen = (resource.get("status") or {}).get("observedGeneration")
    return bool(seen == resource["metadata"]["generation"])


def has_certificates(cluster: Manifest | None) -> bool:
    """Return whether a Cluster has no change in progress and its brokers have the current certificate."""
    return is_done(cluster) and condition_of(cluster, "CertificatesReady").get("reason") == "Current"


@pytest.fixture
def secure(kubernetes: Kubernetes, operators: Operators, namespace: str, tmp_path: Path) -> Iterator[Secure]:
    """Yield a managed namespace without a Cluster."""
    with processes_of(kubernetes.api, namespace, tmp_path, PodBrokers) as brokers:
        brokers.server = kubernetes.server
        brokers.authority = kubernetes.box.state / "pki" / "ca.crt"
        begin_to_follow(brokers)
        try:
            yield Secure(kubernetes, operators, namespace, brokers, tmp_path)
        finally:
            operators.stop_all()


def test_a_new_cluster_is_closed_from_its_first_moment(secure: Secure) -> None:
    """With TLS and Enforce, only the operator, superusers and Users with their rules are served, over TLS only.

    Clients need a certificate, and Prometheus needs the token of the User that the operator creates (rule K13). A
    Secret of another program is not overwritten, and its User gets no token (rules K6, K12).
    """
    staff = Authority.make()
    authorities = {"kind": "ConfigMap", "metadata": {"name": "staff"}, "data": {"ca.crt": staff.pem.decode()}}
    secure.api.apply({"apiVersion": "v1", **authorities}, secure.namespace)
    secure.start_operator()
    tls = {"mode": "Required", "extraNames": NAMES, "clientCaConfigMap": {"name": "staff"}}
    secure.apply({"mode": "Enforce", "metrics": "Token", "tls": tls})
    cluster = secure.wait(has_certificates)
    url = secure.brokers.tls_url.format(id=0)
    unknown = _refusal(lambda: secure.call(url, None, lambda admin: admin.list_topics()))
    secure.identity = staff.issue([], uses=[ExtendedKeyUsageOID.CLIENT_AUTH]).write(
        secure.folder / "staff", staff
    )
    anonymous = _refusal(lambda: secure.call(url, None, lambda admin: admin.list_topics()))
    secure.brokers.wait_until(lambda: secure.metrics(secure.secret("main-metrics").get("token")) == 200)
    user = secure.user(
        "ann",
        acls=[{"operations": ["create", "write"], "topics": ["shop.*"]}],
    )
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "bob"},
        "stringData": {"token": "x"},
    }
    secure.api.apply(foreign, secure.namespace)
    refused = secure.user("bob", acls=[{"operations": ["read"], "topics": ["shop.*"]}])
    token = secure.secret("ann")["token"]
    made = secure.call(url, token, lambda admin: admin.create_topic("shop.orders", partitions=1))
    forbidden = _refusal(
        lambda: secure.call(url, token, lambda admin: admin.create_topic("bank.orders", partitions=1))
    )
    plain = _refusal(
        lambda: secure.call(url.replace("https", "http"), None, lambda admin: admin.list_topics())
    )
    secure.api.delete("users.fairlead.dev/ann", secure.namespace)
    secure.api.wait("users.fairlead.dev/ann", secure.namespace, lambda each: each is None, SLOW_SECONDS)
    revoked = _refusal(lambda: secure.call(url, token, lambda admin: admin.list_topics()))

    assert cluster["status"]["listeners"][0]["bootstrap"].startswith("https://")
    assert (unknown, anonymous) == ("UnreachableError", "UnauthenticatedError")
    assert (secure.metrics(None), secure.metrics(token)) == (401, 401)
    assert user["status"]["principal"] == f"user:{secure.namespace}.ann"
    assert (_ready(refused)["reason"], secure.secret("bob")) == ("SecretNotOurs", {"token": b"x"})
    assert made.name == "shop.orders"
    assert forbidden == "ForbiddenError"
    assert plain == "UnreachableError"
    assert revoked == "UnauthenticatedError"


def test_a_namespace_grants_only_what_the_cluster_allows_it(secure: Secure) -> None:
    """A User of another namespace is refused outside the namespace's grant, and ready inside it (rule K10).

    Nothing of a refused User is applied: it has neither rules nor a token. When the grant shrinks, the rules of a ready
    User are removed, and its token is refused.
    """
    shop = secure.kubernetes.namespace()
    principal = f"user:{shop}.ann"

    def grant(*topics: str) -> None:
        secure.apply(
            {
                "mode": "Enforce",
                "superusers": [f"user:{secure.namespace}.admin"],
                "tls": {"mode": "Required", "extraNames": NAMES},
                "users": [{"namespace": shop, "topics": list(topics)}],
            }
        )

    def rule(*topics: str) -> list[Manifest]:
        return [{"operations": ["create", "read"], "topics": list(topics)}]

    def rules() -> set[tuple[str, str]]:
        """Return kind and pattern of the stored rules of the User."""
        found = secure.call(url, secure.secret("admin")["token"], lambda admin: admin.acls())
        return {(str(each.kind), each.pattern) for each in found if each.principal == principal}

    secure.start_operator(shop)
    grant("shop.*")
    secure.wait(has_certificates)
    url = secure.brokers.tls_url.format(id=0)
    secure.user("admin", acls=rule("staff.*"))
    outside = secure.user("ann", shop, acls=rule("shop.orders", "bank.*"))
    nothing = (rules(), secure.secret("ann", shop))
    inside = secure.user("ann", shop, acls=rule("shop.orders"))
    token, stored = secure.secret("ann", shop)["token"], rules()
    made = secure.call(url, token, lambda admin: admin.create_topic("shop.orders", partitions=1))
    grant("bank.*")
    taken = secure.wait_for_user("ann", shop, lambda ready, _: ready.get("status") == "False")
    left = rules()
    refused = _refusal(lambda: secure.call(url, token, lambda admin: admin.create_topic("shop.orders")))

    assert (_ready(outside)["status"], _ready(outside)["reason"]) == ("False", "NotAllowed")
    assert "bank.*" in _ready(outside)["message"]
    assert nothing == (set(), {})
    assert (_ready(inside)["status"], inside["status"]["principal"]) == ("True", principal)
    assert stored == {("topic", "shop.orders")}
    assert made.name == "shop.orders"
    assert (_ready(taken)["reason"], left) == ("NotAllowed", set())
    assert refused == "UnauthenticatedError"


def test_a_requested_format_becomes_the_level_of_a_running_cluster(secure: Secure) -> None:
    """Brokers of a cluster at feature level 1 get tokens and access rules with `formatVersion` (rule Z17)."""
    keys = Keys(coordination_name(secure.namespace, "main"))
    record = encode(ClusterRecord(cluster_id=str(uuid4()), feature_level=1, created_us=TimestampUs(1)))
    subprocess.run(
        [
            etcd_binaries().etcdctl,
            f"--endpoints={','.join(secure.brokers.etcd)}",
            "put",
            keys.cluster,
            record,
        ],
        check=True,
        capture_output=True,
    )
    secure.start_operator()
    secure.apply(None)
    secure.wait(lambda each: each and each.get("status", {}).get("formatVersion") == 1)
    url = secure.brokers.url.format(id=0)
    refused = _refusal(lambda: secure.call(url, None, lambda admin: admin.create_token("user:ann")))
    secure.api.patch(CLUSTER, secure.namespace, {"spec": {"formatVersion": WITH_SECURITY}})
    secure.wait(lambda each: each and each["status"].get("formatVersion") == WITH_SECURITY)
    made = secure.call(url, None, lambda admin: admin.create_token("user:ann"))

    assert refused == "NotPossibleNowError"
    assert made.principal == "user:ann"


def _refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except FairleadError as error:
        return type(error).__name__
    return "no error"
