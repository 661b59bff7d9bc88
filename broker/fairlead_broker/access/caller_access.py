"""Access of one caller at one security revision and mode, in the form that endpoints check (rules Z3, Z7, Z8).

One object serves all requests of a caller until ACLs, tokens or the mode change, so that a request from a known caller
costs one lookup for each decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fairlead_api.access_needs import SINGLE_KINDS, SINGLE_NAME, Access, Audience, Kind, NameSource, Operation
from fairlead_api.patterns import literal_prefix
from fairlead_api.problems import ProblemError
from fairlead_broker.access.acl_index import AclIndex
from fairlead_broker.access.caller import NOBODY, Caller
from fairlead_broker.access.decision import CallerRules
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.access.would_be_denied import DeniedOperation

ReportDenied = Callable[[DeniedOperation, bool], None]
"""Function that counts an operation that no ACL allows. The second argument of the function is True if `observe` mode
allowed the operation.
"""


class CallerAccess:
    """Access decisions for one caller."""

    __slots__ = ("_is_closed", "_mode", "_report_denied", "caller", "is_open", "owner", "revision", "rules")

    def __init__(
        self,
        caller: Caller,
        rules: CallerRules,
        mode: SecurityMode,
        report_denied: ReportDenied,
        revision: int = 0,
        *,
        is_closed: bool = False,
    ) -> None:
        """`revision`: security revision of the rules and the mode.

        `is_closed`: whether no call of the caller can be decided, because an ACL cannot be read (rule Z11).
        """
        self._is_closed = is_closed
        self.revision = revision
        self.caller = caller
        self.rules = rules
        self._mode = mode
        self._report_denied = report_denied
        self.is_open = mode is SecurityMode.OPEN
        """Whether the mode is `open`, in which a call needs no decision."""
        self.owner: str | None = caller.principal if mode is SecurityMode.ENFORCE else None
        """Principal that owns objects that the caller creates, such as group members; None if ACLs are not enforced."""

    @property
    def holds(self) -> bool:
        """Whether the mode is `enforce`, in which operations that no ACL allows are refused."""
        return self._mode is SecurityMode.ENFORCE

    @property
    def hides(self) -> bool:
        """Whether lists leave out entries that the caller may not describe."""
        return self._mode is SecurityMode.ENFORCE and not self.rules.is_superuser

    @property
    def is_stranger(self) -> bool:
        """Whether, in `enforce` mode, the caller has no token and no ACL allows it any operation."""
        if self._mode is not SecurityMode.ENFORCE:
            return False
        return self.caller.is_anonymous and not self.rules.allows_anything

    def check(self, access: Access, parameters: dict[str, str]) -> None:
        """Raise a problem if the caller may not use a resource in the path of a call.

        The method does not check whether the resource exists.
        """
        if self.is_open or access.audience is Audience.PUBLIC:
            return
        if self._is_closed:
            raise undecidable()
        if access.audience is Audience.SELF and self.caller.is_anonymous and not self.rules.allows_anything:
            observed = self._mode is SecurityMode.OBSERVE
            self._report_denied(DeniedOperation(self.caller.principal, "call", "any"), observed)
            if not observed:
                raise missing_token()
            return
        decide = self.rules.decide
        for need in access.needs:
            if need.source is NameSource.PATH:
                name = parameters[need.kind]
            elif need.source is NameSource.SINGLE:
                name = SINGLE_NAME
            else:
                continue
            if not decide(need.operation, need.kind, name).allowed:
                self.require(need.operation, need.kind, name)

    def require(self, operation: Operation, kind: Kind, name: str) -> None:
        """Raise `forbidden`, or `unauthenticated` for a caller without a token, unless the operation is allowed."""
        if not self.allows(operation, kind, name):
            raise self.refusal(operation, kind, name)

    def allows(self, operation: Operation, kind: Kind, name: str) -> bool:
        """Return whether the operation may be executed. An operation that is not allowed is counted."""
        if self.is_open or self.rules.decide(operation, kind, name).allowed:
            return True
        observed = self._mode is SecurityMode.OBSERVE
        self._report_denied(DeniedOperation(self.caller.principal, operation, named(kind, name)), observed)
        return observed

    def require_all(self, operation: Operation, kind: Kind, prefix: str) -> None:
        """Raise `forbidden` unless the operation is allowed on every name that begins with a prefix.

        Internal names are included only if the prefix begins with `__` (rule Z6).
        """
        if self.is_open or self.rules.allows_all(operation, kind, prefix):
            return
        observed = self._mode is SecurityMode.OBSERVE
        pattern = f"{prefix}*"
        self._report_denied(DeniedOperation(self.caller.principal, operation, named(kind, pattern)), observed)
        if not observed:
            raise self.refusal(operation, kind, pattern)

    def require_subscription(self, topics: Iterable[str], pattern: str | None) -> None:
        """Raise `forbidden` unless the caller may read every topic of a group member's subscription (rule Z14).

        A group assigns all topics that a pattern matches, so a pattern needs `read` on all topics with the literal
        prefix of the pattern.
        """
        if self.is_open:
            return
        for topic in topics:
            self.require(Operation.READ, Kind.TOPIC, topic)
        if pattern is not None:
            self.require_all(Operation.READ, Kind.TOPIC, literal_prefix(pattern))

    def sees(self, kind: Kind, name: str) -> bool:
        """Return whether a list shows this entry to the caller.

        Entries that a list leaves out are not counted as refusals.
        """
        if self._mode is not SecurityMode.ENFORCE:
            return True
        return self.rules.decide(Operation.DESCRIBE, kind, name).allowed

    def refusal(self, operation: Operation, kind: Kind, name: str) -> ProblemError:
        """Return the problem for a refused operation, with the command that allows it."""
        if self.caller.is_anonymous:
            return missing_token()
        principal, resource = self.caller.principal, named(kind, name)
        return ProblemError(
            "forbidden",
            f"{principal} may not {operation} {resource}; an administrator can allow it: "
            f"fairlead acl allow {principal} {operation} {resource}",
            data={"operation": operation, "resource": resource},
        )


def named(kind: Kind, name: str) -> str:
    """Return a resource as it is written in commands, for example `topic:orders` or `cluster:*`."""
    return f"{kind}:{'*' if kind in SINGLE_KINDS else name}"


def undecidable() -> ProblemError:
    """Return the problem for a call whose access cannot be decided."""
    return ProblemError(
        "coordination_unavailable",
        "the broker cannot read a stored token or ACL, and answers superusers only; its log names the key",
    )


def missing_token() -> ProblemError:
    """Return the problem for a call without a token."""
    return ProblemError(
        "unauthenticated",
        "the call has no token; set FAIRLEAD_TOKEN_FILE, or send the header Authorization: Bearer TOKEN; an "
        "administrator creates a token with: fairlead token create user:NAME",
        data={"reason": "missing"},
    )


def _ignore_denied(denied: DeniedOperation, observed: bool) -> None:
    del denied, observed


OPEN_ACCESS: Final = CallerAccess(
    NOBODY, CallerRules(AclIndex(()), NOBODY, ()), SecurityMode.OPEN, _ignore_denied
)
"""Access of a caller without a token in `open` mode, and of calls in tests of individual endpoints."""
