"""Checks whether a caller may change the cluster's security keys and would still be able to undo the change.

The packages that answer clients call this module for patches of the cluster's configuration (rules A9, Z2, Z17, Z18).
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.configuration import (
    FEATURE_LEVEL_KEY,
    SECURITY_MODE_KEY,
    SECURITY_PREFIXES,
    TOKENS_VALID_AFTER_KEY,
    ConfigInput,
    ConfigScope,
    parse_value,
)
from fairlead_api.problems import ProblemError
from fairlead_api.versions import SECURITY_LEVEL
from fairlead_broker.access.caller import Caller
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.access.mode import SecurityMode


def check_security_change(
    feature_level: int, access: CallerAccess, patch: Mapping[str, ConfigInput] | None
) -> None:
    """Raise the problem with which a patch of the cluster's configuration is refused because of its security keys.

    A reset of all keys also resets the security keys.
    """
    if patch is None or any(name.startswith(SECURITY_PREFIXES) for name in patch):
        access.require(Operation.ALTER, Kind.SECURITY, SINGLE_NAME)
    mode = None if patch is None else patch.get(SECURITY_MODE_KEY)
    if mode in (SecurityMode.OBSERVE, SecurityMode.ENFORCE):
        check_level(feature_level, f"security.mode={mode}")
    if mode == SecurityMode.ENFORCE and (access.caller.is_anonymous or not access.rules.can_set_back):
        principal = access.caller.principal
        raise ProblemError(
            "would_lock_out",
            f"{principal} could not set security.mode back from enforce; send the token of a principal that may alter "
            "cluster and security: fairlead acl allow PRINCIPAL all cluster:* and security:*, or a superuser",
            data={"principal": principal},
        )
    valid_after = None if patch is None else patch.get(TOKENS_VALID_AFTER_KEY)
    if valid_after is not None:
        _check_own_token(access.caller, valid_after)


def _check_own_token(caller: Caller, valid_after: ConfigInput) -> None:
    """Raise `would_lock_out` if a value of `tokens.valid.after` would refuse the token of the caller itself."""
    valid_after_ms = parse_value(TOKENS_VALID_AFTER_KEY, valid_after, ConfigScope.CLUSTER)
    assert isinstance(valid_after_ms, int), f"{TOKENS_VALID_AFTER_KEY} is a number"
    if caller.issued_us is not None and caller.issued_us < valid_after_ms * 1000:
        raise ProblemError(
            "would_lock_out",
            f"{TOKENS_VALID_AFTER_KEY}={valid_after_ms} would refuse the token of this request, which was created at "
            f"{caller.issued_us // 1000}; send a token that was created at or after {valid_after_ms}: fairlead token "
            f"create {caller.principal} --file FILE",
            data={"principal": caller.principal},
        )


def check_level(feature_level: int, what: str) -> None:
    """Raise `not_possible_now` if the cluster's feature level allows a release that would ignore a security record."""
    if feature_level < SECURITY_LEVEL:
        raise ProblemError(
            "not_possible_now",
            f"{what} needs feature level {SECURITY_LEVEL}, the cluster is at {feature_level}; raise it with: "
            f"fairlead cluster config -c {FEATURE_LEVEL_KEY}={SECURITY_LEVEL}",
        )
