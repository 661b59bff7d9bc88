"""Security of a Cluster on real pods under load: the steps from open to closed and back, and replaced certificates."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from captured_traffic import captured_traffic
from cluster_words import BROKERS, condition_of
from pods_stage import THREE_MEMBERS, PodsStage, keep_counts, pods_stage, serves
from secured_clients import (
    CLOSED,
    LONG_SECONDS,
    Access,
    AccountAccess,
    a_load,
    bundle_of,
    create_user,
    load_topic,
    wait_for,
)
from shown_secrets import mounted_tokens, secrets_of, shown_secrets

if TYPE_CHECKING:
    from kube_client import Manifest
    from pods import KubernetesPods

pytestmark = [pytest.mark.timeout(1400), pytest.mark.scenario]

ETCD = "fairlead.dev/cluster=main,app.kubernetes.io/component=etcd"
PEERS, ETCD_CALLS, LISTENERS = (
    f"fairlead.dev/{name}" for name in ("peer-scheme", "etcd-scheme", "etcd-transport")
)
TRANSPORT_STEPS = ((BROKERS, PEERS, "https"), (BROKERS, ETCD_CALLS, "https"), (ETCD, LISTENERS, "tls"))
"""Steps that the operator takes by itself: the pods, their annotation, and its value afterwards."""
PREFACE = "PRI * HTTP/2.0"
"""First bytes of every connection over HTTP/2 without TLS."""
BEARER = "Bearer "
"""Part of every request with a token."""
RECORD = "x" * 64
"""Part of every record of a load."""
OPS_PORT = 9522
"""Port of metrics and probes, which has no TLS unless metrics need a token."""
DATA_PORTS, PEER_PORTS, ETCD_PORTS = {9520, 9524}, {9521}, {2379, 2380, 2479, 2480}
CAPTURE_SECONDS = 10.0
REFUSED_CODE = 4
"""Exit code of a command whose caller is not authenticated, or has no right."""


def annotations_of(stage: PodsStage, selector: str, name: str) -> list[str | None]:
    """Return an annotation of the pods of a component."""
    pods = stage.kubernetes.api.list("pods", stage.namespace, selector)
    return [each["metadata"].get("annotations", {}).get(name) for each in pods]


def wait_for_pods(stage: PodsStage, selector: str, name: str, value: str | None) -> None:
    """Wait until three pods of a component have an annotation."""
    stage.kubernetes.api.wait_list(
        "pods",
        stage.namespace,
        lambda pods: [each["metadata"].get("annotations", {}).get(name) for each in pods] == [value] * 3,
        selector=selector,
        seconds=LONG_SECONDS,
    )


def wait_certified(stage: PodsStage) -> Manifest:
    """Wait until every broker has the current certificate and no change is in progress."""
    return stage.wait(
        lambda each: serves(each) and condition_of(each, "CertificatesReady").get("reason") == "Current",
        LONG_SECONDS,
    )


def set_mode(stage: PodsStage, plain: str, mode: str) -> None:
    """Set the mode of access rules, and wait until a client without a token is served or refused accordingly."""
    stage.set("security/mode", mode)
    stage.wait(serves)
    wait_for(lambda: is_refused(stage, plain) == (mode == "Enforce"))


def set_tls(stage: PodsStage, mode: str) -> None:
    """Set which of a Cluster's listeners have TLS, and wait until the first listener speaks the scheme."""
    stage.set("security/tls/mode", mode)
    scheme = "https" if mode == "Required" else "http"
    stage.wait(
        lambda each: serves(each) and each["status"]["listeners"][0]["bootstrap"].startswith(f"{scheme}://")
    )


def is_refused(stage: PodsStage, url: str) -> bool:
    """Return whether a client without a token is refused."""
    done = stage.kubernetes.run("fairlead", "topic", "list", "--bootstrap", url, check=False)
    return done.returncode != 0


def account_outcomes(stage: PodsStage, url: str, topic: str, folder: Path) -> list[int]:
    """Return the exit codes of a command with tokens that the API server has signed for service accounts.

    The accounts are one with a right, the same account with the audience of another cluster, and one without rights.
    """
    for account in ("reader", "stranger"):
        manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}}
        stage.kubernetes.api.apply(manifest, stage.namespace)
    create_user(stage, "reader", [{"operations": ["read"], "topics": [topic]}], serviceAccountName="reader")
    codes = []
    for account, cluster in (("reader", "main"), ("reader", "other"), ("stranger", "main")):
        token = folder / f"{account}-{cluster}"
        audience = f"fairlead/{stage.namespace}/{cluster}"
        token.write_text(stage.kubernetes.api.token(account, stage.namespace, audience=audience))
        token.chmod(0o600)
        settings = (f"FAIRLEAD_TOKEN_FILE={token}", f"FAIRLEAD_CA_FILE={folder / 'ca.crt'}")
        command = ("fairlead", "topic", "describe", topic, "--bootstrap", url)
        codes.append(stage.kubernetes.run("env", *settings, *command, check=False).returncode)
    return codes


def test_certificates_and_tls_between_pods_come_and_go(
    kubernetes_pods: KubernetesPods, tmp_path: Path
) -> None:
    """Brokers and etcd change from plain connections to TLS and back while clients write, and no write is lost."""
    with pods_stage(kubernetes_pods, tmp_path, etcd=THREE_MEMBERS) as stage, stage.load() as load:
        stage.set("security", {})
        for step in TRANSPORT_STEPS:
            wait_for_pods(stage, *step)
        wait_certified(stage)
        stage.change({"op": "remove", "path": "/spec/security"})
        for selector, name in ((ETCD, LISTENERS), (BROKERS, ETCD_CALLS), (BROKERS, PEERS)):
            wait_for_pods(stage, selector, name, None)
        stage.wait(serves, LONG_SECONDS)
    keep_counts("TLS between pods", **load.counts, steps=2 * len(TRANSPORT_STEPS))

    assert load.counts["acknowledged"] > 0
    assert load.losses == {}


@pytest.mark.timeout(2300)
def test_an_open_cluster_is_closed_step_by_step(kubernetes_pods: KubernetesPods, tmp_path: Path) -> None:
    """A running open Cluster is closed in the documented steps, and opened again up to TLS beside plain connections.

    Clients write all the time, and no client is refused before the step that excludes it (proof V11). No packet of the
    closed Cluster shows a name of a topic, a record, or a connection without TLS, except for metrics and probes (proof
    V12). A token of a service account has the rights of its User, and only at the Cluster in its audience (proof V7).
    """
    with pods_stage(kubernetes_pods, tmp_path, etcd=THREE_MEMBERS) as stage:
        plain, secure = stage.bootstrap, stage.bootstrap.replace("http:", "https:")
        beside = secure.replace(":9520", ":9524")
        first, second, third = (load_topic(stage, f"load-{name}") for name in ("plain", "secure", "again"))
        words = first, second, RECORD, PREFACE
        with a_load(stage, plain, first) as before:
            with captured_traffic(stage, *words) as at_first:
                assert not is_refused(stage, plain)
            stage.set("security", {})
            for step in TRANSPORT_STEPS:
                wait_for_pods(stage, *step)
            wait_certified(stage)
            for mode, names in (("Both", 2), ("Off", 1), ("Both", 2)):
                stage.set("security/tls", {"mode": mode})
                stage.wait(lambda each, n=names: serves(each) and len(each["status"]["listeners"]) == n)
            access = Access(stage, tmp_path)
            with a_load(stage, beside, second, access) as after:
                for mode in ("Observe", "Open", "Observe"):
                    stage.set("security/mode", mode)
                    stage.wait(serves)
                before.finish()
                for mode in ("Enforce", "Observe", "Enforce"):
                    set_mode(stage, plain, mode)
                for mode in ("Required", "Both", "Required"):
                    set_tls(stage, mode)
                with captured_traffic(stage, *words, access.token, BEARER) as at_last:
                    threading.Event().wait(CAPTURE_SECONDS)
                closed = [is_refused(stage, url) for url in (plain, secure)]
                codes = account_outcomes(stage, secure, first, tmp_path)
                set_tls(stage, "Both")
                for mode in ("Observe", "Open"):
                    set_mode(stage, plain, mode)
                with a_load(stage, plain, third) as again:
                    after.finish()
    keep_counts(
        "open to closed",
        plain=before.counts,
        secure=after.counts,
        again=again.counts,
        words_in_packets_when_open=sum(map(bool, at_first.found.values())),
        ports_with_words_when_closed=sorted({port for ports in at_last.found.values() for port in ports}),
        exit_codes_of_service_accounts=codes,
    )

    assert before.losses == after.losses == again.losses == {}
    assert min(each.counts["acknowledged"] for each in (before, after, again)) > 0
    assert closed == [True, True]
    assert codes == [0, REFUSED_CODE, REFUSED_CODE]
    assert all(ports & DATA_PORTS for ports in at_first.found.values()), at_first
    assert all(at_last.ports & ports for ports in (DATA_PORTS, PEER_PORTS, ETCD_PORTS)), at_last
    assert {port for ports in at_last.found.values() for port in ports} <= {OPS_PORT}, at_last


def test_certificates_are_replaced_under_load(kubernetes_pods: KubernetesPods, tmp_path: Path) -> None:
    """A new certificate, authority and token reach brokers, etcd and writing clients (proof V10).

    The operator is killed in each phase of the replacement of the authority.
    No log, event, metric, answer or status shows a token or key (proof V18).
    """
    with pods_stage(kubernetes_pods, tmp_path, security=CLOSED, etcd=THREE_MEMBERS) as stage:
        url = stage.bootstrap.replace("http:", "https:")
        topic, access = load_topic(stage, "load-rotation"), Access(stage, tmp_path)
        pods, old, secrets = stage.pods(), authorities_of(stage), secrets_of(stage)
        with access.followed(), a_load(stage, url, topic, access) as load:
            leaf, token = leaf_of(stage), access.token
            stage.kubernetes.api.annotate(
                "users.fairlead.dev/load", stage.namespace, {"fairlead.dev/renew-token": "true"}
            )
            wait_for(lambda: access.token != token)
            stage.set("security/tls/extraNames", ["further.example"])
            wait_for(lambda: leaf_of(stage) != leaf)
            wait_certified(stage)
            stage.kubernetes.api.annotate(
                "clusters.fairlead.dev/main",
                stage.namespace,
                {"fairlead.dev/renew-ca": "true", "fairlead.dev/skip-overlap": "true"},
            )
            leaf = leaf_of(stage)
            for reached in (
                lambda: len(authorities_of(stage)) == 2,
                lambda: leaf_of(stage) != leaf,
                lambda: len(authorities_of(stage)) == 1 and authorities_of(stage) != old,
            ):
                wait_for(reached)
                stage.operator.stop(9)
                stage.start_operator()
            wait_certified(stage)
            kept = stage.pods()
            shown = shown_secrets(stage, url, access.token, secrets)
    keep_counts(
        "replaced certificates",
        **load.counts,
        operators_killed=len(stage.operators.started) - 1,
        brokers_restarted=sum(kept.get(name) != uid for name, uid in pods.items()),
        secrets_shown=len(shown),
    )

    assert load.losses == {}
    assert load.counts["acknowledged"] > 0
    assert shown == []
    assert kept == pods, "no broker restarts for a certificate"


def test_tokens_and_keys_of_service_accounts_are_replaced_under_load(
    kubernetes_pods: KubernetesPods, tmp_path: Path
) -> None:
    """The API server signs with another key twice; brokers, with tokens that kubelets replace, fetch both new keys.

    No write of a client with a service account fails. After the second change, the API server refuses tokens of the
    first key, so that a broker which kept its first token could not fetch keys any more.
    """
    with pods_stage(kubernetes_pods, tmp_path, security=CLOSED) as stage:
        url = stage.bootstrap.replace("http:", "https:")
        topic, access = load_topic(stage, "load-account"), AccountAccess(stage, tmp_path)
        tokens, first = mounted_tokens(stage), access.renew()
        with a_load(stage, url, topic, access) as load:
            stage.kubernetes.replace_token_key()
            change_token(stage, access)
            for node in stage.kubernetes.nodes:
                stage.kubernetes.kill_kubelet(node)
                stage.kubernetes.start_kubelet(node)
            wait_for(lambda: not tokens.items() & mounted_tokens(stage).items())
            # A pod of an operator would read its replaced token from a file; here, the token is an argument.
            stage.operator.stop()
            stage.kubernetes.replace_token_key()
            stage.start_operator()
            change_token(stage, access)
            stage.wait_done()
        first_file = tmp_path / "first"
        first_file.write_text(first)
        codes = [code_of_whoami(stage, pod, first_file) for pod in stage.pods()]
    keep_counts(
        "replaced tokens and keys of service accounts",
        **load.counts,
        tokens_of_brokers_replaced=len(tokens),
        brokers_refusing_the_first_key=codes.count(REFUSED_CODE),
    )

    assert load.losses == {}
    assert load.counts["acknowledged"] > 0
    assert len(tokens) >= 2 * len(codes)
    assert codes == [REFUSED_CODE] * 3


def change_token(stage: PodsStage, access: AccountAccess) -> None:
    """Give the client a token signed with the current key, and wait until every broker accepts the token."""
    access.renew()
    for pod in stage.pods():
        wait_for(lambda pod=pod: code_of_whoami(stage, pod, access.folder / "token") == 0)


def code_of_whoami(stage: PodsStage, pod: str, token: Path) -> int:
    """Return the exit code of a command that sends a token to one broker."""
    url = f"https://{pod}.main-brokers.{stage.namespace}.svc:9520"
    settings = (f"FAIRLEAD_TOKEN_FILE={token}", f"FAIRLEAD_CA_FILE={token.with_name('ca.crt')}")
    command = ("env", *settings, "fairlead", "whoami", "--bootstrap", url)
    return stage.kubernetes.run(*command, check=False).returncode


def leaf_of(stage: PodsStage) -> str:
    """Return the certificate of the brokers."""
    found: Any = stage.kubernetes.api.get("secret/main-brokers-tls", stage.namespace)
    return str(found["data"]["tls.crt"])


def authorities_of(stage: PodsStage) -> list[str]:
    """Return the certificates of all authorities."""
    return bundle_of(stage).split("-----END CERTIFICATE-----")[:-1]
