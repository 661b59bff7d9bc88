"""Problems reported by calls about tokens, ACLs and the security mode.

The module is a part of the catalogue, which `problems` assembles.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.problems.definitions import DataMember, ProblemDefinition, ProblemKind

FIX: Final = ProblemKind.FIX
_VALUE: Final = DataMember("value", "value in the request, truncated if long")
_ALLOWED: Final = DataMember("allowed", "allowed values")

SECURITY_PROBLEMS: Final = (
    ProblemDefinition(
        "token_not_found",
        404,
        "The token does not exist",
        FIX,
        "No API token has this id: it was revoked, or never existed.",
        "List the tokens: `fairlead token list`.",
        data_members=(DataMember("token_id", "id in the request"),),
    ),
    ProblemDefinition(
        "acl_not_found",
        404,
        "The ACL does not exist",
        FIX,
        "No ACL has this id: it was removed, or never existed.",
        "List the ACLs: `fairlead acl list`.",
        data_members=(DataMember("acl_id", "id in the request"),),
    ),
    ProblemDefinition(
        "quota_not_found",
        404,
        "The quota does not exist",
        FIX,
        "The subject has no quota: it was removed, or never existed.",
        "List the quotas: `fairlead quota list`.",
        data_members=(DataMember("subject", "subject in the request"),),
    ),
    ProblemDefinition(
        "would_lock_out",
        409,
        "The caller could not undo the change",
        FIX,
        "A caller requested the security mode `enforce`, under which it could not change the mode back, or a value of "
        "`tokens.valid.after` that would make its own token invalid. Nothing was changed.",
        "Send the token of a superuser, or of a principal that is allowed to alter `cluster` and `security`; for "
        "`tokens.valid.after`, create a token after that time and send the new token.",
        data_members=(DataMember("principal", "principal of the caller"),),
    ),
    ProblemDefinition(
        "invalid_acl",
        422,
        "The ACL is not allowed",
        FIX,
        "A field of the ACL has a value that is not allowed. Nothing was changed.",
        "Correct the field that the detail names.",
        data_members=(DataMember("field", "name of the field"), _VALUE, _ALLOWED),
    ),
    ProblemDefinition(
        "invalid_quota",
        422,
        "The quota is not allowed",
        FIX,
        "The subject of the quota, or one of its limits, is not allowed. Nothing was changed.",
        "Correct the field that the detail names.",
        data_members=(DataMember("field", "name of the field"), _VALUE, _ALLOWED),
    ),
    ProblemDefinition(
        "invalid_principal",
        422,
        "The principal is not allowed",
        FIX,
        "A principal, or a pattern of principals, does not have the required form. Nothing was changed.",
        "Correct the principal: `user:NAME` for a token, and a name or a prefix that ends in `*` for an ACL.",
        data_members=(_VALUE, _ALLOWED),
    ),
)
"""Problems of this module, in the order of their status."""
