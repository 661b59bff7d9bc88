"""Security of the cluster as this broker sees it: mode, ACLs, tokens, and the access of each caller (rules Z1, Z9, A5).

The data and peer listeners call this view once for each request. The access rules are compiled from the mirror once for
each security revision. If the coordination store is unavailable, the last ACLs and tokens remain in effect. If a stored
token or ACL cannot be read, a broker in `enforce` mode serves only superusers (rule Z11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeVar

import structlog

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.audit_events import AUDIT_TOPIC
from fairlead_api.configuration import SECURITY_MODE_KEY, TOKENS_VALID_AFTER_KEY
from fairlead_api.identifiers import Revision
from fairlead_api.problems import ProblemError
from fairlead_broker.access.acl_index import Acl, AclIndex, Effect
from fairlead_broker.access.caller import NOBODY, Caller, CallerSource
from fairlead_broker.access.caller_access import CallerAccess
from fairlead_broker.access.decision import CachedDecisions, CallerRules
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.access.would_be_denied import DeniedOperation, WouldBeDenied
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.cluster_values import cluster_number, cluster_value
from fairlead_broker.credentials.api_tokens import verified
from fairlead_broker.credentials.bearer import Refused, bearer_token, too_many_failures, unauthenticated
from fairlead_broker.credentials.claims import is_signed
from fairlead_broker.credentials.failure_budget import FailureBudget
from fairlead_broker.credentials.refused_tokens import RefusedTokens
from fairlead_broker.identity.signed_tokens import KeyUnknown, SignedTokens
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.security_records import AclRecord, TokenRecord

_log = structlog.get_logger("fairlead.security")
_KeyT = TypeVar("_KeyT")
_ValueT = TypeVar("_ValueT")

SIGNED_REMEMBERED_US: Final = 600_000_000
"""Time for which the caller of a signed token is remembered (rule A5)."""
ACCEPTED: Final = "accepted"
"""Outcome of a successful authentication."""
BROKER_PREFIX: Final = "broker:"
BUILT_IN: Final = Acl(
    effect=Effect.ALLOW,
    principal=f"{BROKER_PREFIX}*",
    operations=frozenset({Operation.WRITE}),
    kind=Kind.TOPIC,
    pattern=AUDIT_TOPIC,
)
"""Built-in ACL, not stored in the cluster, that allows brokers to write the audit log to its topic."""
KEYS_SHOWN_MAX: Final = 20
CALLERS_MAX: Final = 10_000
"""Maximum number of remembered callers; the least recently seen caller is dropped."""


@dataclass(frozen=True, slots=True)
class SecurityCounters:
    """Functions that count authentications, by source and outcome, and operations that are not allowed.

    The last argument states whether the request is answered although the operation is not allowed, as in `observe`
    mode.
    """

    authentication: Callable[[str, str, bool], None]
    denied: Callable[[DeniedOperation, bool], None]


@dataclass(frozen=True, slots=True)
class _Known:
    """Access of a verified token, and the time until which the token need not be verified again."""

    access: CallerAccess
    until_us: int | None
    digest: bytes


class SecurityView:
    """Mode and access rules of the cluster, compiled from the mirror."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        clock: Clock,
        floor: SecurityMode,
        superusers: tuple[str, ...],
        counters: SecurityCounters,
        signed: SignedTokens | None = None,
    ) -> None:
        """`floor`: mode with which the broker was started; a stricter mode of the cluster takes precedence.

        `signed`: signed tokens of the issuers; None if the broker has none.
        """
        self.signed = signed or SignedTokens({}, lambda *_: None, clock)
        self._has_issuers = bool(self.signed.issuers)
        self._generation = 0
        self._metadata = metadata
        self._clock = clock
        self.floor = floor
        self.superusers = superusers
        self._counters = counters
        self.would_be_denied = WouldBeDenied()
        self._failures = FailureBudget()
        self.cached_decisions = CachedDecisions()
        """Decisions about all callers, including callers of calls that began before the last change."""
        self._known: dict[bytes, _Known] = {}
        """Callers of accepted headers by the value of the header, because a digest costs more than the lookup."""
        self._acls: dict[str, tuple[AclRecord, Acl]] = {}
        """ACLs of the stored records by id, kept because most ACLs are unaffected by a change."""
        self._verified: dict[bytes, None] = {}
        """Digests of headers that were verified at earlier revisions; these headers are exempt from the limit on
        refused tokens."""
        self._compile()

    @property
    def is_readable(self) -> bool:
        """Whether access can be decided: every token and ACL can be read, or access is not enforced (rule Z11)."""
        self._follow()
        return not self._is_closed

    @property
    def known_callers(self) -> int:
        """Number of callers whose token need not be verified again."""
        return len(self._known)

    @property
    def mode(self) -> SecurityMode:
        """Mode in effect on this broker."""
        self._follow()
        return self._mode

    def by_header(self, values: list[bytes], address: str, *, waited: bool = False) -> CallerAccess:
        """Return the access of the caller that sent these values of the header `Authorization`.

        Raises `unauthenticated` for a token that is not accepted, in `enforce` mode. In any mode except `enforce`, a
        caller whose token is not accepted is counted and treated as anonymous (rule A3). Raises `throttled` for a token
        that is not remembered, from an address with too many refused tokens (rule A6). Raises `CallerPending` for a
        signed token that can be verified only after a wait; after the wait, the caller calls this method again with
        `waited`.
        """
        self._follow()
        if not values:
            return self._anonymous
        value = values[0] if len(values) == 1 else b""
        known = self._known.get(value)
        if known is not None and (known.until_us is None or self._clock.now_us() < known.until_us):
            if len(self._known) > CALLERS_MAX // 2:
                # The order of use matters only in a table that may become full.
                del self._known[value]
                self._known[value] = known
            return known.access
        digest = sha256(value).digest() if len(values) == 1 else b""
        now = self._clock.monotonic()
        refused = self._refused.find(digest, now)
        if refused is not None:
            self._counters.authentication("none", refused, not self._enforces)
            if self._mode is SecurityMode.ENFORCE:
                raise unauthenticated(refused)
            return self._anonymous
        wait_seconds = self._failures.wait_seconds(address, now)
        if wait_seconds > 0 and known is None and digest not in self._verified:
            self._counters.authentication("none", "throttled", not self._enforces)
            if self._mode is SecurityMode.ENFORCE:
                raise too_many_failures(wait_seconds)
            return self._anonymous
        return self._by_token(values, digest, address, now, waited=waited)

    def remembered(self, value: bytes) -> str | None:
        """Return the principal of a header `Authorization` that is remembered, or None (rule Q9)."""
        known = self._known.get(value)
        return None if known is None else known.access.caller.principal

    def _by_token(
        self, values: list[bytes], digest: bytes, address: str, now: float, *, waited: bool
    ) -> CallerAccess:
        """Verify a token that is not remembered."""
        source = "none"
        try:
            text = bearer_token(values)
            source = self._source_of(text)
            caller = self._caller(text, waited=waited)
        except ProblemError as problem:
            if problem.code == "unauthenticated":
                self._failures.fail(address, now)
                # A refusal for an unknown key is not remembered, because the issuer's next key set may contain the key.
                if digest and not isinstance(problem, KeyUnknown):
                    self._refused.add(digest, Refused(str(problem.data["reason"])), now)
            reason = str(problem.data.get("reason", problem.code))
            self._counters.authentication(source, reason, not self._enforces)
            if self._mode is SecurityMode.ENFORCE:
                raise
            return self._anonymous
        self._counters.authentication(source, ACCEPTED, False)
        access = self._access(caller)
        _remember(self._known, values[0], _Known(access, self._forgotten_us(caller), digest))
        return access

    def of(self, caller: Caller) -> CallerAccess:
        """Return the access of a caller that another broker, a certificate or a request for an explanation names."""
        self._follow()
        # Callers with the same names may have different tokens, one of which expires first.
        access = self._named.get(caller)
        if access is None:
            access = self._access(caller)
            _remember(self._named, caller, access)
        return access

    def again(self, access: CallerAccess) -> CallerAccess:
        """Return the current access of the caller, after the call has waited (rule Z10).

        Raises `unauthenticated` if the caller's token was revoked or has expired.
        """
        if self.is_current(access):
            return access
        self._check_again(access.caller)
        return self._access(access.caller)

    def is_current(self, access: CallerAccess) -> bool:
        """Return whether an access is still valid: no rule has changed, and the caller's token has not expired."""
        self._follow()
        if access.revision != self._generation:
            return False
        until_us = access.caller.accepted_until_us
        return until_us is None or self._clock.now_us() < until_us

    def may_read(self, caller: Caller, topics: list[str]) -> bool:
        """Return whether the caller of a waiting call still has read access to topics. Raises `unauthenticated`."""
        self._follow()
        if not self._enforces:
            return True
        self._check_again(caller)
        rules = self.of(caller).rules
        return all(rules.decide(Operation.READ, Kind.TOPIC, topic).allowed for topic in topics)

    def _check_again(self, caller: Caller) -> None:
        """Raise `unauthenticated` if the token of a caller was revoked or has expired."""
        if not self._enforces:
            return
        if caller.token_id is not None:
            record = self._token(caller.token_id)
            if record is None or record.created_us < self._valid_after_us:
                raise unauthenticated(Refused.REFUSED)
        if caller.issuer is not None:
            assert caller.issued_us is not None, "a signed token has a time"
            if not self.signed.holds(caller) or caller.issued_us < self._valid_after_us:
                raise unauthenticated(Refused.REFUSED)
        until_us = caller.accepted_until_us
        if until_us is not None and until_us <= self._clock.now_us():
            raise unauthenticated(Refused.EXPIRED)

    def rules_of(self, caller: Caller) -> CallerRules:
        """Return the rules that apply to a caller, in any mode."""
        return self.of(caller).rules

    @property
    def _enforces(self) -> bool:
        return self._mode is SecurityMode.ENFORCE

    def _follow(self) -> None:
        if self._metadata.security_revision != self._revision or (
            self._has_issuers and self.signed.revision != self._keys_revision
        ):
            self._compile()

    def _compile(self) -> None:
        metadata = self._metadata
        self._revision: Revision = metadata.security_revision
        self._keys_revision = self.signed.revision
        self._generation += 1
        self._mode = SecurityMode(str(cluster_value(metadata, SECURITY_MODE_KEY))).stricter(self.floor)
        self._valid_after_us = cluster_number(metadata, TOKENS_VALID_AFTER_KEY) * 1000
        unreadable = sorted(metadata.unreadable_security)
        if unreadable:
            _log.error("token or ACL cannot be read", keys=unreadable[:KEYS_SHOWN_MAX], mode=self._mode)
        self._is_closed = bool(unreadable) and self._mode is SecurityMode.ENFORCE
        # An unreadable ACL may be a denial, so the other ACLs could allow a denied operation.
        self._acls = {} if self._is_closed else self._followed_acls()
        self._index = AclIndex((BUILT_IN, *(acl for _, acl in self._acls.values())))
        for known in self._known.values():
            _remember(self._verified, known.digest, None)
        self._known = {}
        self._refused = RefusedTokens()
        self._named: dict[Caller, CallerAccess] = {}
        self.cached_decisions.clear()
        self._anonymous = self._access(NOBODY)

    def _followed_acls(self) -> dict[str, tuple[AclRecord, Acl]]:
        """Return the ACLs of the stored records; an ACL whose record has not changed is kept."""
        found = {}
        for acl_id, stored in self._metadata.acls.items():
            known = self._acls.get(acl_id)
            record = stored.value
            found[acl_id] = known if known is not None and known[0] is record else (record, acl_of(record))
        return found

    def _access(self, caller: Caller) -> CallerAccess:
        rules = CallerRules(self._index, caller, self.superusers, self.cached_decisions)
        # ACLs do not apply to calls that brokers make on their own behalf.
        is_broker = caller.source is CallerSource.PEER and caller.principal.startswith(BROKER_PREFIX)
        closed = self._is_closed and not rules.is_superuser and not is_broker
        return CallerAccess(
            caller, rules, self._mode, self._report_denied, self._generation, is_closed=closed
        )

    def _source_of(self, text: str) -> str:
        """Return the source of a token for metrics."""
        return self.signed.source_of(text) if is_signed(text) else str(CallerSource.API_TOKEN)

    def _caller(self, text: str, *, waited: bool) -> Caller:
        """Return the caller of a token of any kind (rule A4)."""
        if is_signed(text):
            return self.signed.caller(text, self._valid_after_us, waited=waited)
        return verified(text, self._token, self._clock.now_us(), self._valid_after_us)

    def _forgotten_us(self, caller: Caller) -> int | None:
        """Return the time until which a caller is remembered; signed tokens are verified again after ten minutes."""
        until_us = caller.accepted_until_us
        if caller.issuer is None:
            return until_us
        assert until_us is not None, "a signed token expires"
        return min(until_us, self._clock.now_us() + SIGNED_REMEMBERED_US)

    def _token(self, token_id: str) -> TokenRecord | None:
        found = self._metadata.tokens.get(token_id)
        return None if found is None else found.value

    def _report_denied(self, denied: DeniedOperation, observed: bool) -> None:
        self._counters.denied(denied, observed)
        if observed:
            self.would_be_denied.add(denied)


def _remember(table: dict[_KeyT, _ValueT], key: _KeyT, value: _ValueT) -> None:
    """Add an entry at the end, and drop the first entry if there are too many."""
    table.pop(key, None)
    table[key] = value
    if len(table) > CALLERS_MAX:
        del table[next(iter(table))]


def acl_of(record: AclRecord) -> Acl:
    """Return the ACL of a record."""
    return Acl(
        effect=Effect(record.effect),
        principal=record.principal,
        operations=frozenset(record.operations),
        kind=Kind(record.kind),
        pattern=record.pattern,
    )
