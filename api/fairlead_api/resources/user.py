"""Custom resource User: a principal of a cluster with its access rules, and its token if it needs one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from fairlead_api.resources.cluster_security import HOURS, LISTED_MAX, Hours, NamePatterns, Quota
from fairlead_api.resources.cluster_status import Conditions
from fairlead_api.resources.resource import Part, Resource
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import NamespaceName, ObjectName, ShortText

OperationName = Literal["describe", "create", "alter", "delete", "read", "write", "all"]


class UserClusterReference(Part):
    """The Cluster that the User belongs to."""

    name: ObjectName
    """Name of the Cluster."""
    namespace: NamespaceName | None = None
    """Namespace of the Cluster; by default the namespace of the User. A Cluster in another namespace must list the \
User's namespace in security.users."""


class UserToken(Part):
    """Token of a User without a service account."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                # CEL's duration() fails on malformed text, so this rule passes such text; the rules of the two fields
                # refuse it.
                f"!self.expireAfter.matches('{HOURS}') || !self.renewBefore.matches('{HOURS}') || "
                "duration(self.expireAfter) > duration(self.renewBefore)",
                "expireAfter must be longer than renewBefore, or each token would be replaced at once",
                ".expireAfter",
            )
        )
    )

    secret_name: ObjectName | None = None
    """Name of the Secret for the token; by default the name of the User."""
    expire_after: Hours = "2160h"
    """Time after which a token expires."""
    renew_before: Hours = "720h"
    """Time before the expiry of a token at which the operator creates the next token. The previous token remains \
valid for a day."""


class UserAcl(Part):
    """Access rule of a User: operations on topics, groups or producers by name or prefix."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.topics) || has(self.groups) || has(self.producers)",
                "an access rule must name topics, groups or producers",
            )
        )
    )

    effect: Literal["Allow", "Deny"] = "Allow"
    """Whether the operations are allowed or denied; a denial has precedence."""
    operations: Annotated[tuple[OperationName, ...], kubernetes(minItems=1, maxItems=7)]
    """Operations: describe, create, alter, delete, read, write, all."""
    topics: NamePatterns = ()
    """Topics, by name or prefix."""
    groups: NamePatterns = ()
    """Consumer groups, by name or prefix."""
    producers: NamePatterns = ()
    """Named producers, by name or prefix."""


class UserSpec(Part):
    """Desired state of the User."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "has(self.serviceAccountName) == has(oldSelf.serviceAccountName) && "
                "(!has(self.serviceAccountName) || self.serviceAccountName == oldSelf.serviceAccountName)",
                "serviceAccountName cannot be changed: create another User",
                ".serviceAccountName",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                "!has(self.serviceAccountName) || !has(self.token)",
                "a User with serviceAccountName must not have a token",
                ".token",
            ),
        )
    )

    cluster_ref: Annotated[
        UserClusterReference,
        kubernetes(
            Rule(
                "self == oldSelf",
                "clusterRef cannot be changed: create another User",
                reason=RuleReason.FORBIDDEN,
            )
        ),
    ]
    """The Cluster that the User belongs to. The reference cannot be changed."""
    service_account_name: ObjectName | None = None
    """Service account in the User's namespace. Pods of the account authenticate with their projected \
token, so no token is created."""
    token: UserToken | None = None
    """Token of a User without a service account."""
    acls: Annotated[tuple[UserAcl, ...], kubernetes(maxItems=LISTED_MAX)] = Field(default=())
    """Access rules."""
    quota: Quota | None = None
    """Quota of the principal; by default the quotas of the cluster for all principals."""


class UserStatus(Part):
    """Observed state of the User."""

    observed_generation: int | None = None
    """Generation of the spec for which the status was written."""
    conditions: Conditions = ()
    """Conditions; the conditions reference explains each type and reason."""
    principal: ShortText | None = None
    """Principal of the User."""
    token_id: ShortText | None = None
    """Id of the token in the Secret."""
    expires_at: Annotated[str, kubernetes(format="date-time")] | None = None
    """Time at which the token in the Secret expires."""


class User(Resource):
    """A principal of a Fairlead cluster with its access rules."""

    spec: UserSpec
    """Desired state of the User."""
    status: UserStatus = UserStatus()
    """Observed state of the User."""

    @property
    def cluster_namespace(self) -> str:
        """Namespace of the Cluster."""
        return self.spec.cluster_ref.namespace or self.namespace

    @property
    def principal(self) -> str:
        """Principal of the User."""
        account = self.spec.service_account_name
        return f"user:{self.namespace}.{self.name}" if account is None else f"k8s:{self.namespace}:{account}"

    @property
    def token(self) -> UserToken:
        """Settings of the token."""
        return self.spec.token or UserToken()

    @property
    def secret_name(self) -> str:
        """Name of the Secret with the token."""
        return self.token.secret_name or self.name
