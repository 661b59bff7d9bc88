"""Routes of the calls about callers, tokens, ACLs and the security of the cluster.

The module is a part of the route table, which `routes` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.access_needs import SELF, Kind, Operation, each_in_body, needs, on, self_with
from fairlead_api.bodies.media_types import JSON
from fairlead_api.bodies.metadata import Page
from fairlead_api.bodies.quotas import ChangedQuota, QuotaDescription, QuotaRequest
from fairlead_api.bodies.security import (
    AclDescription,
    AclRequest,
    Applied,
    CheckAnswer,
    CheckRequest,
    CreatedAcl,
    CreatedToken,
    CreateTokenRequest,
    SecurityStatus,
    TokenDescription,
    WhoAmI,
)
from fairlead_api.routes.definitions import AnswerForm, Route, Traffic
from fairlead_api.routes.query_parameters import ParameterKind, QueryParameter
from fairlead_api.routes.topics import AFTER, LIMIT

_CHANGE: Final = ("conflict", "not_possible_now", "shutting_down", "coordination_unavailable")
_BODY: Final = ("body_too_large", "unsupported_media_type")
_FORCE: Final = QueryParameter(
    name="force",
    kind=ParameterKind.FLAG,
    default=False,
    explanation="remove the record although a program manages it",
)
_SUBJECT: Final = {"subject": "subject of the quota, percent-encoded"}
_PRINCIPAL: Final = QueryParameter(
    name="principal",
    kind=ParameterKind.TEXT,
    maximum=249,
    explanation="only entries of this principal, or of all principals with a prefix, as in `user:shop-*`",
)
_RESOURCE: Final = (
    QueryParameter(
        name="kind",
        kind=ParameterKind.CHOICE,
        choices=tuple(each.value for each in Kind),
        explanation="only ACLs on resources of this kind",
    ),
    QueryParameter(
        name="name",
        kind=ParameterKind.TEXT,
        maximum=249,
        explanation="only ACLs whose pattern matches this name",
    ),
)


def _json(type_: object, explanation: str, status: int = 200) -> AnswerForm:
    return AnswerForm(status=status, type=type_, media_types=(JSON,), explanation=explanation)


SECURITY_ROUTES: Final = (
    Route(
        name="whoami",
        method="GET",
        path="/v1/whoami",
        summary="The identity of the caller, as determined by the broker",
        access=SELF,
        answers=(_json(WhoAmI, "principal, token and mode"),),
    ),
    Route(
        name="security_status",
        method="GET",
        path="/v1/security",
        summary="The security mode, and the operations that `enforce` mode would refuse",
        access=needs(on(Operation.DESCRIBE, Kind.SECURITY)),
        answers=(_json(SecurityStatus, "the state of the answering broker, and the denials of all brokers"),),
    ),
    Route(
        name="list_tokens",
        method="GET",
        path="/v1/tokens",
        summary="The API tokens, without their secrets",
        access=needs(on(Operation.DESCRIBE, Kind.SECURITY)),
        query=(_PRINCIPAL, LIMIT, AFTER),
        answers=(_json(Page[TokenDescription], "one page of tokens, by id"),),
    ),
    Route(
        name="create_token",
        method="POST",
        path="/v1/tokens",
        summary="Create an API token; only this answer contains its text",
        access=needs(on(Operation.CREATE, Kind.SECURITY)),
        request=CreateTokenRequest,
        body_types=(JSON,),
        answers=(_json(CreatedToken, "the token", 201),),
        problems=("invalid_principal", *_BODY, *_CHANGE),
    ),
    Route(
        name="revoke_token",
        method="DELETE",
        path="/v1/tokens/{token}",
        summary="Revoke an API token",
        access=needs(on(Operation.DELETE, Kind.SECURITY)),
        path_parameters={"token": "id of the token"},
        query=(_FORCE,),
        answers=(_json(Applied, "the token is revoked"),),
        problems=("token_not_found", *_CHANGE),
    ),
    Route(
        name="list_acls",
        method="GET",
        path="/v1/acls",
        summary="The ACLs",
        access=needs(on(Operation.DESCRIBE, Kind.SECURITY)),
        query=(_PRINCIPAL, *_RESOURCE, LIMIT, AFTER),
        answers=(_json(Page[AclDescription], "one page of ACLs, by id"),),
    ),
    Route(
        name="create_acl",
        method="POST",
        path="/v1/acls",
        summary="Allow or deny operations; an existing ACL is not added again",
        access=needs(on(Operation.CREATE, Kind.SECURITY)),
        request=AclRequest,
        body_types=(JSON,),
        answers=(
            _json(CreatedAcl, "the ACL was created", 201),
            _json(CreatedAcl, "the ACL existed already"),
        ),
        problems=("invalid_acl", "invalid_principal", *_BODY, *_CHANGE),
    ),
    Route(
        name="remove_acl",
        method="DELETE",
        path="/v1/acls/{acl}",
        summary="Remove an ACL",
        access=needs(on(Operation.DELETE, Kind.SECURITY)),
        path_parameters={"acl": "id of the ACL"},
        query=(_FORCE,),
        answers=(_json(Applied, "the ACL is removed"),),
        problems=("acl_not_found", *_CHANGE),
    ),
    Route(
        name="check_acls",
        traffic=Traffic.ROUTINE,
        method="POST",
        path="/v1/acls:check",
        summary="Explain a decision: whether an operation is allowed, and which ACL decides",
        access=self_with(each_in_body(Operation.DESCRIBE, Kind.SECURITY)),
        request=CheckRequest,
        body_types=(JSON,),
        answers=(_json(CheckAnswer, "the decision and its reason"),),
        problems=("invalid_principal", *_BODY),
    ),
    Route(
        name="list_quotas",
        method="GET",
        path="/v1/quotas",
        summary="The quotas",
        access=needs(on(Operation.DESCRIBE, Kind.SECURITY)),
        query=(
            QueryParameter(
                name="subject",
                kind=ParameterKind.TEXT,
                maximum=249,
                explanation="only quotas of this subject, or of all subjects with a prefix, as in `user:shop-*`",
            ),
            QueryParameter(
                name="usage",
                kind=ParameterKind.FLAG,
                default=False,
                explanation="show the usage of each limit",
            ),
            LIMIT,
            AFTER,
        ),
        answers=(_json(Page[QuotaDescription], "one page of quotas, by subject"),),
    ),
    Route(
        name="put_quota",
        method="PUT",
        path="/v1/quotas/{subject}",
        summary="Set the whole quota of a subject",
        access=needs(on(Operation.ALTER, Kind.SECURITY)),
        path_parameters=_SUBJECT,
        query=(_FORCE,),
        request=QuotaRequest,
        body_types=(JSON,),
        answers=(_json(ChangedQuota, "the quota is stored"),),
        problems=("invalid_quota", *_BODY, *_CHANGE),
    ),
    Route(
        name="remove_quota",
        method="DELETE",
        path="/v1/quotas/{subject}",
        summary="Remove the quota of a subject",
        access=needs(on(Operation.DELETE, Kind.SECURITY)),
        path_parameters=_SUBJECT,
        query=(_FORCE,),
        answers=(_json(Applied, "the quota is removed"),),
        problems=("quota_not_found", *_CHANGE),
    ),
)
"""Routes of this module, in the order of the route table."""
