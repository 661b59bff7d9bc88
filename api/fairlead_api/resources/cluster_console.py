"""Part of a Cluster's spec: the console, a web application with which people see and steer the cluster."""

from __future__ import annotations

from typing import Annotated, Final

from fairlead_api.resources.cluster_listeners import ListenerRoute
from fairlead_api.resources.cluster_parts import PodTemplate, Resources
from fairlead_api.resources.cluster_security import AuthorityReference, HttpsUrl, Word
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import Rule, kubernetes
from fairlead_api.resources.texts import ObjectName

HIDDEN_MAX: Final = 32

HiddenPattern = Annotated[
    str,
    kubernetes(
        Rule(
            "self.matches('^[a-zA-Z0-9._*?-]+$')",
            "a pattern of topic names, in which * and ? are wildcards, such as payroll.*",
        ),
        maxLength=249,
        minLength=1,
    ),
]
"""Pattern of names of topics whose records are hidden."""
ConsoleRoute = Annotated[
    ListenerRoute,
    kubernetes(Rule("self.kind != 'TLSRoute'", "the console has no TLS of its own: Ingress or HTTPRoute")),
]


class ConsoleIssuer(Part):
    """OIDC issuer at which people sign in to the console."""

    issuer: HttpsUrl
    """URL of the issuer. The brokers must accept its tokens: list the same issuer in security.issuers."""
    client_id: Word = "fairlead"
    """Client id of the console at the issuer."""
    client_secret_name: ObjectName | None = None
    """Secret whose key client-secret contains the secret of the client, for an issuer that requires one."""
    ca_config_map: AuthorityReference | None = None
    """ConfigMap with the authority of the issuer's certificate; by default the authorities of the image."""


class Console(Part):
    """Web application with which people see and steer the cluster."""

    read_only: bool = False
    """Whether the console refuses every change."""
    hide_records: Annotated[tuple[HiddenPattern, ...], kubernetes(maxItems=HIDDEN_MAX)] = ()
    """Patterns of topics whose records the console does not show."""
    route: ConsoleRoute | None = None
    """Ingress or HTTPRoute, created by the operator, through which browsers reach the console. Without a route, \
people reach the console with kubectl port-forward."""
    oidc: ConsoleIssuer | None = None
    """OIDC issuer at which people sign in; without an issuer, people sign in with tokens."""
    session_secret_name: ObjectName | None = None
    """Secret whose key session-key encrypts sessions, with at least 32 bytes. Without the Secret, all sessions end \
with the pod."""
    resources: Resources | None = None
    """Processor and memory of the console; by default a request of 50m and 128Mi. \
An empty value requests neither CPU nor memory."""
    template: PodTemplate | None = None
    """Additions to the pod that the operator creates."""
