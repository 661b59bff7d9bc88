"""Security of the brokers' pods: settings, volumes that hold certificates and tokens, and the least strict mode.

Without `spec.security`, no security settings or volumes are rendered, so that a newer operator changes no pod of an
older Cluster. Certificates and authorities are volumes: their replacement changes no pod (rule K3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_security import (
    AuthorityReference,
    ClusterSecurity,
    Issuer,
    SecurityModeName,
    TlsMode,
)
from fairlead_operator.naming import (
    AUTHORITIES_SINCE_ANNOTATION,
    BROKER_COMPONENT,
    CERTIFICATE,
    CONFIG_FOLDER,
    CONFIG_MAP,
    DATA_PORT,
    EXTERNAL_PORT,
    OPS_PORT,
    PEER_PORT,
    TLS_PORT,
    USER,
    Manifest,
    Scheme,
    audience_of,
    authority_name,
    brokers_tls_name,
    clients_tls_name,
    metrics_user_name,
)
from fairlead_operator.render.fingerprints import said
from fairlead_operator.render.inputs import Transport
from fairlead_operator.render.metadata import framed

ACCOUNT_ISSUER: Final = "k8s"
"""Name of the issuer of service account tokens; the principals of service accounts begin with this name."""
TOKEN_SECONDS: Final = 3600
EVERY_ADDRESS: Final = "[::]"
PEER_TLS_FOLDER: Final = f"{CONFIG_FOLDER}-peer-tls"
TLS_FOLDER: Final = f"{CONFIG_FOLDER}-tls"
TLS_VOLUME: Final = "tls"
"""Volume of a broker with the certificate for clients."""
CLIENT_CA_FOLDER: Final = f"{CONFIG_FOLDER}-client-ca"
TOKEN_FOLDER: Final = "/var/run/secrets/fairlead"  # noqa: S105 - a folder
ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
BUNDLE_FILE: Final = "ca.crt"
_LISTENERS: Final[Mapping[TlsMode, str]] = {
    "Off": f"http://{EVERY_ADDRESS}:{DATA_PORT}",
    "Both": f"http://{EVERY_ADDRESS}:{DATA_PORT},https://{EVERY_ADDRESS}:{TLS_PORT}",
    "Required": f"https://{EVERY_ADDRESS}:{DATA_PORT},https://{EVERY_ADDRESS}:{TLS_PORT}",
}
STRICTNESS: Final = ("open", "observe", "enforce")
"""Security modes of brokers in increasing order of strictness."""


def mode_of(mode: SecurityModeName) -> str:
    """Return the name of a security mode in the settings of brokers."""
    return mode.lower()


def floor_of(security: ClusterSecurity | None) -> str:
    """Return the least strict mode of a broker; `observe` instead of `enforce` if clients need not use TLS."""
    if security is None:
        return STRICTNESS[0]
    mode = mode_of(security.mode)
    if mode == "enforce" and security.tls.mode != "Required" and not security.allow_plaintext:
        return "observe"
    return mode


def data_tls_name(cluster: Cluster) -> str:
    """Return the name of the Secret with the certificate that clients see."""
    security = cluster.spec.security
    chosen = None if security is None else security.tls.certificate
    if chosen is None:
        return brokers_tls_name(cluster.name)
    return chosen.secret_name or clients_tls_name(cluster.name)


def client_ca(security: ClusterSecurity) -> AuthorityReference | None:
    """Return the ConfigMap with the authorities of client certificates; None if clients need no certificate."""
    return None if security.tls.mode == "Off" else security.tls.client_ca_config_map


def ops_scheme(security: ClusterSecurity | None) -> Scheme:
    """Return the scheme of the ops listener, which has TLS only if it receives tokens."""
    if security is None or security.metrics == "Open" or security.tls.mode == "Off":
        return "http"
    return "https"


def settings(cluster: Cluster, transport: Transport) -> list[tuple[str, str]]:
    """Return the variables of a broker, in addition to those of a Cluster without security."""
    security = _security(cluster)
    tls = security.tls
    scheme = "https" if tls.mode == "Required" else "http"
    variables = [
        ("FAIRLEAD_LISTEN", _LISTENERS[tls.mode]),
        ("FAIRLEAD_PEER_LISTEN", f"{transport.peer_scheme}://{EVERY_ADDRESS}:{PEER_PORT}"),
        ("FAIRLEAD_OPS_LISTEN", f"{ops_scheme(security)}://{EVERY_ADDRESS}:{OPS_PORT}"),
        # Metrics contain no secrets, and the network policy limits which pods can reach the ops port. Without
        # FAIRLEAD_METRICS_ACCESS, a broker in `enforce` mode would refuse Prometheus.
        ("FAIRLEAD_METRICS_ACCESS", security.metrics.lower()),
        ("FAIRLEAD_EXTERNAL_LISTEN", f"{scheme}://{EVERY_ADDRESS}:{EXTERNAL_PORT}"),
        ("FAIRLEAD_BOOTSTRAP", f"{scheme}://localhost:{DATA_PORT}"),
        ("FAIRLEAD_PEER_TLS", PEER_TLS_FOLDER),
        ("FAIRLEAD_SECURITY", floor_of(security)),
    ]
    if security.allow_plaintext:
        variables.append(("FAIRLEAD_ALLOW_PLAINTEXT", "true"))
    if tls.mode != "Off":
        variables += [("FAIRLEAD_TLS", TLS_FOLDER), ("FAIRLEAD_TLS_MIN", tls.min_version)]
    if client_ca(security) is not None:
        # The command line in the pod, which the stop hook runs, authenticates to the listener with the brokers'
        # certificate.
        variables += [
            ("FAIRLEAD_CLIENT_CA", f"{CLIENT_CA_FOLDER}/{BUNDLE_FILE}"),
            ("FAIRLEAD_CLIENT_CERT_FILE", f"{PEER_TLS_FOLDER}/tls.crt"),
            ("FAIRLEAD_CLIENT_KEY_FILE", f"{PEER_TLS_FOLDER}/tls.key"),
        ]
    if security.service_accounts:
        variables.append(("FAIRLEAD_TOKEN_FILE", f"{TOKEN_FOLDER}/token"))
    return variables


def volumes(cluster: Cluster) -> list[tuple[Manifest, str]]:
    """Return the volumes with certificates and tokens, each with its folder."""
    security = _security(cluster)
    found: list[tuple[Manifest, str]] = [
        ({"name": "peer-tls", "secret": {"secretName": brokers_tls_name(cluster.name)}}, PEER_TLS_FOLDER)
    ]
    if security.tls.mode != "Off":
        found.append(({"name": TLS_VOLUME, "secret": {"secretName": data_tls_name(cluster)}}, TLS_FOLDER))
    if security.service_accounts:
        audience = audience_of(cluster.namespace, cluster.name)
        # The command line in the pod finds the files `token` and `ca.crt` in this folder without an option.
        own = _projected("token", [_token(audience=audience), _bundle(authority_name(cluster.name))])
        account = _projected(
            "account",
            [_token(), _bundle("kube-root-ca.crt")],
        )
        found += [(own, TOKEN_FOLDER), (account, ACCOUNT_FOLDER)]
    if (clients := client_ca(security)) is not None:
        source = _bundle(clients.name, key=clients.key)
        found.append(({"name": "client-ca", **source}, CLIENT_CA_FOLDER))
    for issuer in security.issuers:
        if issuer.ca_config_map is not None:
            source = _bundle(issuer.ca_config_map.name, key=issuer.ca_config_map.key)
            found.append(({"name": f"issuer-{issuer.name}-ca", **source}, _issuer_folder(issuer)))
    return found


def _issuer_folder(issuer: Issuer) -> str:
    return f"{CONFIG_FOLDER}-issuers/{issuer.name}"


def file_settings(cluster: Cluster, transport: Transport) -> dict[str, Any]:
    """Return the settings in the configuration file: superusers and issuers."""
    security = _security(cluster)
    issuers: dict[str, Any] = {}
    audience = audience_of(cluster.namespace, cluster.name)
    if security.service_accounts:
        issuers[ACCOUNT_ISSUER] = {"kubernetes": True, "audience": audience}
    for issuer in security.issuers:
        given = {
            "issuer": issuer.issuer,
            "audience": issuer.audience or audience,
            "jwks": issuer.jwks_url,
            "principal_claim": issuer.principal_claim,
            "groups_claim": issuer.groups_claim,
            "ca": None if issuer.ca_config_map is None else f"{_issuer_folder(issuer)}/{BUNDLE_FILE}",
        }
        issuers[issuer.name] = {name: value for name, value in given.items() if value is not None}
    superusers = [*transport.superusers, *security.superusers]
    return {
        **({"superusers": superusers} if superusers else {}),
        **({"issuers": issuers} if issuers else {}),
    }


def pod_words(cluster: Cluster, transport: Transport | None) -> dict[str, object]:
    """Return the security settings in the fingerprint of a pod: settings that a broker reads only at startup.

    The fingerprint does not contain the least strict mode, since brokers restart only if the mode is lowered (see
    `plan.roll`).
    """
    security = cluster.spec.security
    if security is None or transport is None:
        return {}
    clients = client_ca(security)
    return {
        "peers": transport.peer_scheme,
        "tls": {"mode": security.tls.mode, "min": security.tls.min_version, "secret": data_tls_name(cluster)},
        "file": file_settings(cluster, transport),
        "authorities": [said(each.ca_config_map) for each in security.issuers],
        **({} if clients is None else {"clients": said(clients)}),
        **({} if security.metrics == "Open" else {"metrics": security.metrics}),
        "plaintext": security.allow_plaintext,
    }


def authorities_map(cluster: Cluster, transport: Transport) -> Manifest:
    """Return the ConfigMap with all authorities that clients trust, and the time of their last change."""
    manifest = framed(cluster, CONFIG_MAP, authority_name(cluster.name), component=BROKER_COMPONENT)
    if transport.authorities_since:
        annotations = {AUTHORITIES_SINCE_ANNOTATION: transport.authorities_since}
        manifest["metadata"] = {**manifest["metadata"], "annotations": annotations}
    return {**manifest, "data": {BUNDLE_FILE: transport.authorities}}


def metrics_users(cluster: Cluster) -> list[Manifest]:
    """Return the User of Prometheus, if metrics need a token; its access rule belongs to the Cluster (rule K13)."""
    security = cluster.spec.security
    if security is None or security.metrics == "Open":
        return []
    manifest = framed(cluster, USER, metrics_user_name(cluster.name), component=BROKER_COMPONENT)
    return [{**manifest, "spec": {"clusterRef": {"name": cluster.name}}}]


def client_certificates(cluster: Cluster, names: tuple[str, ...]) -> list[Manifest]:
    """Return the cert-manager Certificate for the data listener; empty if the Cluster names no issuer."""
    security = cluster.spec.security
    chosen = None if security is None else security.tls.certificate
    if chosen is None or chosen.issuer_ref is None:
        return []
    manifest = framed(cluster, CERTIFICATE, clients_tls_name(cluster.name), component=BROKER_COMPONENT)
    manifest["spec"] = {
        "secretName": clients_tls_name(cluster.name),
        "issuerRef": {
            **said(chosen.issuer_ref),
            "kind": chosen.issuer_ref.kind,
            "group": chosen.issuer_ref.group,
        },
        "dnsNames": list(names),
        "usages": ["server auth", "client auth", "digital signature"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
    }
    return [manifest]


def _security(cluster: Cluster) -> ClusterSecurity:
    security = cluster.spec.security
    assert security is not None, "only Clusters with security have certificates"
    return security


def _token(*, audience: str | None = None) -> Manifest:
    token: Manifest = {"path": "token", "expirationSeconds": TOKEN_SECONDS}
    return {"serviceAccountToken": {**({} if audience is None else {"audience": audience}), **token}}


def _bundle(config_map: str, *, key: str = BUNDLE_FILE) -> Manifest:
    items = [{"key": key, "path": BUNDLE_FILE}]
    return {"configMap": {"name": config_map, "items": items}}


def _projected(name: str, sources: list[Manifest]) -> Manifest:
    return {"name": name, "projected": {"defaultMode": 0o440, "sources": sources}}
