"""Part of a Cluster's spec: TLS, tokens and access rules."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import ConfigDict, Field

from fairlead_api.principals import ISSUER_NAME, ISSUER_NAME_RULE, OTHER_SOURCES
from fairlead_api.resources.quantities import Rate
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import ObjectName

SecurityModeName: TypeAlias = Literal["Open", "Observe", "Enforce"]
TlsMode: TypeAlias = Literal["Off", "Both", "Required"]
MetricsAccess: TypeAlias = Literal["Open", "Token"]

LISTED_MAX: Final = 32
ISSUERS_MAX: Final = 8
PATTERN_LENGTH_MAX: Final = 249
HOURS: Final = "^[0-9]{1,5}h$"
SERVICE_ACCOUNTS: Final = "k8s"
"""Name of the issuer of service accounts, which `serviceAccounts` adds."""
HTTPS_RULE: Final = Rule("self.startsWith('https://')", "an https address")

NamePattern = Annotated[
    str,
    kubernetes(
        Rule(
            r"self.matches('^([a-zA-Z0-9._-]{1,249}|[a-zA-Z0-9._-]{0,248}\\*)$')",
            "a name, a prefix that ends in '*', or '*'",
        ),
        maxLength=PATTERN_LENGTH_MAX,
        minLength=1,
    ),
]
"""Pattern of names of topics, groups or producers."""
PrincipalPattern = Annotated[
    str,
    kubernetes(
        Rule(
            r"self.matches('^([!-)+.-~-]{1,249}|[!-)+.-~-]{0,248}\\*)$') && !self.contains(',')",
            "a principal such as user:ann, or a prefix that ends in '*'",
        ),
        maxLength=PATTERN_LENGTH_MAX,
        minLength=1,
    ),
]
NamePatterns = Annotated[tuple[NamePattern, ...], kubernetes(maxItems=LISTED_MAX)]
HttpsUrl = Annotated[str, kubernetes(HTTPS_RULE, maxLength=512)]
Word = Annotated[str, kubernetes(maxLength=253, minLength=1)]
Hours = Annotated[
    str,
    kubernetes(
        Rule(f"self.matches('{HOURS}')", "a number of hours, such as 168h"),
        maxLength=6,
    ),
]


class AuthorityReference(Part):
    """Certificates of authorities in a ConfigMap of the Cluster's namespace."""

    name: ObjectName
    """Name of the ConfigMap."""
    key: Word = "ca.crt"
    """Key with the certificates, in PEM."""


class Issuer(Part):
    """Issuer of signed tokens that the brokers accept."""

    name: Annotated[
        str,
        kubernetes(
            Rule(
                f"self.matches('^{ISSUER_NAME}$') && !(self in {[*OTHER_SOURCES, SERVICE_ACCOUNTS]})",
                f"{ISSUER_NAME_RULE}; not {', '.join(OTHER_SOURCES)} or {SERVICE_ACCOUNTS}",
            ),
            maxLength=31,
        ),
    ]
    """Name of the issuer, which is the prefix of the principals of its tokens."""
    issuer: HttpsUrl
    """Exact value of the iss claim."""
    audience: Word | None = None
    """Value that the aud claim must equal or contain; by default fairlead/ with the namespace and the name of the \
Cluster, as in fairlead/shop/main."""
    jwks_url: HttpsUrl | None = None
    """Address of the issuer's keys; by default the issuer's discovery document names it."""
    principal_claim: Word | None = None
    """Claim with the name of the caller; by default sub."""
    groups_claim: Word | None = None
    """Claim with the list of the caller's groups; by default none."""
    ca_config_map: AuthorityReference | None = None
    """Authorities that sign the certificates of the issuer's addresses; by default the system's authorities."""


class QuotaLimits(Part):
    """Limits of a principal in the whole cluster."""

    produce_bytes_per_second: Rate | None = None
    """Maximum number of bytes per second in produce requests, such as 10Mi."""
    fetch_bytes_per_second: Rate | None = None
    """Maximum number of bytes per second in answers with records."""
    requests_per_second: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of requests of all kinds per second."""
    concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of concurrent requests, including long polls."""


class Quota(Part):
    """Quota of a User."""

    each: QuotaLimits
    """Limits of each principal."""


class NamespaceQuota(Part):
    """Largest limits for the Users of a namespace, individually and together."""

    each: QuotaLimits | None = None
    """Largest limits that the quota of a User may set."""
    shared: QuotaLimits | None = None
    """Limits that all Users of the namespace share: once for Users with tokens, once for Users with service accounts. \
If `each` sets no limits, the quota of a User may set limits up to the shared limits."""


class NamespaceUsers(Part):
    """Names and limits that the Users of a namespace may grant."""

    namespace: Annotated[str, kubernetes(maxLength=63, minLength=1)]
    """Name of the namespace."""
    topics: NamePatterns = ()
    """Topics, by name or prefix."""
    groups: NamePatterns = ()
    """Consumer groups, by name or prefix."""
    producers: NamePatterns = ()
    """Named producers, by name or prefix."""
    quota_max: NamespaceQuota | None = None
    """Largest limits of the Users of the namespace. By default, these Users share no limit and cannot have a quota."""


class IssuerReference(Part):
    """Issuer of cert-manager."""

    name: ObjectName
    """Name of the issuer."""
    kind: Word = "Issuer"
    """Kind of the issuer: Issuer or ClusterIssuer."""
    group: Word = "cert-manager.io"
    """API group of the issuer."""


class ClientCertificate(Part):
    """Source of the certificate that clients see, instead of the operator's own authority: exactly one field."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.issuerRef) != has(self.secretName)",
                "exactly one of issuerRef and secretName must be set",
            )
        )
    )

    issuer_ref: IssuerReference | None = None
    """Issuer of cert-manager. The operator creates a Certificate."""
    secret_name: ObjectName | None = None
    """Secret with tls.crt, tls.key and ca.crt, which the operator only reads."""


class ClusterTls(Part):
    """TLS of the data listener."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "!has(self.clientCaConfigMap) || self.mode != 'Off'",
                "clientCaConfigMap needs tls.mode Both or Required",
                ".clientCaConfigMap",
            )
        )
    )

    mode: TlsMode = "Off"
    """Off: clients use http on port 9520. Both: clients use http on port 9520 or https on port 9524, during a \
migration to TLS. Required: clients use https on both ports. A change restarts the brokers one at a time."""
    min_version: Literal["1.2", "1.3"] = "1.3"
    """Lowest version of TLS that the data listener accepts."""
    certificate: ClientCertificate | None = None
    """Source of the certificate; by default the operator's own authority."""
    extra_names: Annotated[
        tuple[Annotated[str, kubernetes(maxLength=253, minLength=1)], ...], kubernetes(maxItems=LISTED_MAX)
    ] = ()
    """Further host names and IP addresses in the certificate of the operator's own authority."""
    client_ca_config_map: AuthorityReference | None = None
    """Authorities that sign the certificates of clients. Clients need a certificate signed by one of these \
authorities in addition to their token; the certificate does not determine the principal. By default clients need no \
certificate."""
    client_overlap: Hours = "168h"
    """Time between the publication of a new authority and the use of certificates that it has signed. Clients must \
load the new authority in this period; clients that mount the ConfigMap with the authorities load it within minutes."""


_TLS_MODE: Final = "(has({0}.tls) ? {0}.tls.mode : 'Off')"


class ClusterSecurity(Part):
    """TLS, tokens and access rules of the cluster."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.mode != 'Enforce' || self.allowPlaintext || (has(self.tls) && self.tls.mode != 'Off')",
                "mode Enforce needs tls.mode Both or Required, because without TLS, tokens can be read on the network; "
                "set allowPlaintext if a service mesh encrypts the connections",
                ".mode",
            ),
            Rule(
                # A rule on tls.mode would not be evaluated for a stored object without tls.
                f"{_TLS_MODE.format('self')} == {_TLS_MODE.format('oldSelf')} || "
                f"{_TLS_MODE.format('self')} == 'Both' || {_TLS_MODE.format('oldSelf')} == 'Both'",
                "between Off and Required, set Both until every client uses the new address",
                ".tls.mode",
                RuleReason.FORBIDDEN,
            ),
        )
    )

    mode: SecurityModeName = "Open"
    """Open: no caller is refused. Observe: operations that Enforce would refuse are counted and listed. Enforce: \
operations that no access rule allows are refused."""
    allow_plaintext: bool = False
    """Whether Enforce mode is allowed without TLS, because a service mesh encrypts the connections."""
    superusers: Annotated[tuple[PrincipalPattern, ...], kubernetes(maxItems=LISTED_MAX)] = ()
    """Patterns of principals and groups that, like the operator, are allowed every operation."""
    service_accounts: bool = True
    """Whether the brokers accept tokens of Kubernetes service accounts with the audience \
fairlead/<namespace>/<cluster>. The principal is k8s:<namespace>:<account>, and its group is group:k8s:<namespace>."""
    issuers: Annotated[
        tuple[Issuer, ...],
        kubernetes(
            **{
                "maxItems": ISSUERS_MAX,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            }
        ),
    ] = ()
    """Further issuers of signed tokens."""
    metrics: MetricsAccess = "Open"
    """Callers that may read /metrics of the brokers. Open: all pods that the network policy allows. Token: only \
callers that may describe the cluster. With Token, the operator creates a User <cluster>-metrics, whose token the \
PodMonitor uses, and the brokers serve metrics with TLS unless tls.mode is Off. A change restarts the brokers one at a \
time."""
    users: Annotated[
        tuple[NamespaceUsers, ...],
        kubernetes(
            **{"maxItems": 64, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["namespace"]}
        ),
    ] = ()
    """Other namespaces that may have Users of this Cluster, and the names and limits that they may grant. Users \
in the Cluster's own namespace may grant everything on topics, groups and producers."""
    tls: ClusterTls = Field(default_factory=ClusterTls)
    """TLS of the data listener. The connections between brokers always use TLS in new Clusters."""

    @property
    def overlap_hours(self) -> int:
        """Number of hours of `tls.clientOverlap`."""
        return int(self.tls.client_overlap.removesuffix("h"))
