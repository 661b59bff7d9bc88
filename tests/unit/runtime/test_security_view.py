"""Access of callers whose tokens expire or that other brokers name, and cached decisions (rules A8, Z9, Z10)."""

from __future__ import annotations

from typing import Final

import pytest

from fairlead_api.access_needs import Kind, Operation
from fairlead_api.identifiers import Revision, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_api.token_text import TokenText
from fairlead_broker.access import decision as decisions
from fairlead_broker.access.caller import Caller, CallerSource
from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.clock import SystemClock
from fairlead_broker.credentials.claims import LEEWAY_SECONDS, IssuerRules
from fairlead_broker.identity.issuer_keys import IssuerKeys
from fairlead_broker.identity.jose import read_keys
from fairlead_broker.identity.signed_tokens import SignedTokens
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.security_records import AclRecord, TokenRecord
from fairlead_broker.registry.store_writes import KeyValue
from fairlead_broker.runtime.security_view import SecurityCounters, SecurityView
from issuer_kit import AUDIENCE, TestIssuer

ADDRESS: Final = "127.0.0.1"
LIFE_SECONDS: Final = 600
KEYS: Final = Keys("view")


class HandClock(SystemClock):
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.ahead_seconds = 0

    def now_us(self) -> TimestampUs:
        """Return the time of the machine, moved ahead."""
        return TimestampUs(super().now_us() + self.ahead_seconds * 1_000_000)


class Scene:
    """A view of an enforcing cluster with an issuer and one ACL."""

    def __init__(self) -> None:
        self.clock, self.issuer = HandClock(), TestIssuer()
        self.metadata, self._revision = ClusterMetadata(KEYS), Revision(1)
        self.allow("corp:ann")
        keys = IssuerKeys(IssuerRules(name="corp", issuer=self.issuer.issuer, audience=AUDIENCE))
        keys.replace(read_keys(self.issuer.jwks).keys, self.clock.now_us())
        self.outcomes: list[str] = []
        self.view = SecurityView(
            self.metadata,
            self.clock,
            SecurityMode.ENFORCE,
            (),
            SecurityCounters(lambda _, outcome, __: self.outcomes.append(outcome), lambda *_: None),
            SignedTokens({"corp": keys}, lambda *_: None, self.clock),
        )

    def store(self, key: str, record: AclRecord | TokenRecord) -> None:
        """Store a record, which is a new security revision."""
        revision = self._revision = Revision(self._revision + 1)
        self.metadata.apply(revision, {key: KeyValue(key, encode(record), revision, revision)})

    def allow(self, principal: str) -> None:
        """Allow a principal to read the topic `orders`."""
        record = AclRecord(
            effect="allow", principal=principal, operations=("read",), kind=Kind.TOPIC, pattern="orders",
            created_us=TimestampUs(1), created_by="user:admin",
        )  # fmt: skip
        self.store(KEYS.acl(f"{self._revision:016x}"), record)


def test_an_expired_token_has_the_same_leeway_in_calls_and_in_waits() -> None:
    """For a minute after its expiry, a signed token is remembered, and reads that wait with it continue."""
    scene = Scene()
    header = [b"Bearer " + scene.issuer.token().encode()]
    scene.clock.ahead_seconds = LIFE_SECONDS + LEEWAY_SECONDS // 2
    access = scene.view.by_header(header, ADDRESS)
    again = scene.view.by_header(header, ADDRESS)
    is_current = scene.view.is_current(access)
    may_read = scene.view.may_read(access.caller, ["orders"])
    scene.clock.ahead_seconds = LIFE_SECONDS + LEEWAY_SECONDS + 1

    assert (scene.outcomes, again, is_current, may_read) == (["accepted"], access, True, True)
    assert not scene.view.is_current(access)
    for refused in (
        lambda: scene.view.again(access),
        lambda: scene.view.may_read(access.caller, ["orders"]),
        lambda: scene.view.by_header(header, ADDRESS),
    ):
        with pytest.raises(ProblemError) as problem:
            refused()
        assert problem.value.data["reason"] == "expired"


def test_the_expiry_of_a_token_ends_no_call_that_another_broker_forwards() -> None:
    """A forwarded call names only its caller, so the expiry of another token of the caller has no effect on it.

    The waiting read of the other token was checked again after a change of the ACLs.
    """
    scene = Scene()
    own = scene.view.by_header([b"Bearer " + scene.issuer.token().encode()], ADDRESS)
    scene.allow("corp:bob")
    may_read = scene.view.may_read(own.caller, ["orders"])
    scene.clock.ahead_seconds = LIFE_SECONDS + LEEWAY_SECONDS + 1
    forwarded = scene.view.of(Caller(principal="corp:ann", source=CallerSource.PEER))

    assert may_read
    assert scene.view.is_current(forwarded)
    assert scene.view.again(forwarded) is forwarded
    assert scene.view.may_read(forwarded.caller, ["orders"])


def test_an_api_token_has_no_leeway() -> None:
    """Brokers create API tokens by their own clocks, so a token is refused from the time of its expiry."""
    scene, token = Scene(), TokenText("a" * 12, "b" * 43)
    scene.store(
        KEYS.token(token.token_id),
        TokenRecord(
            principal="user:ann", secret_sha256=token.secret_sha256, created_us=TimestampUs(1), created_by="user:admin",
            expires_us=TimestampUs(scene.clock.now_us() + LIFE_SECONDS * 1_000_000),
        ),
    )  # fmt: skip
    scene.allow("user:ann")
    access = scene.view.by_header([b"Bearer " + token.text.encode()], ADDRESS)
    allowed = access.allows(Operation.READ, Kind.TOPIC, "orders")
    scene.clock.ahead_seconds = LIFE_SECONDS + 1

    assert allowed
    with pytest.raises(ProblemError) as problem:
        scene.view.again(access)
    assert problem.value.data["reason"] == "expired"


def test_decisions_of_all_callers_have_one_limit_and_end_with_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decisions about callers with tokens and about forwarded callers are limited together (rule Z9).

    After a change of the ACLs, the view has no decision, and a call that began earlier counts towards the same limit.
    """
    monkeypatch.setattr(decisions, "DECISIONS_IN_ALL_MAX", 20)
    scene, counts = Scene(), []
    own = scene.view.by_header([b"Bearer " + scene.issuer.token().encode()], ADDRESS)
    for number in range(50):
        caller = Caller(principal=f"user:u{number}", source=CallerSource.PEER)
        for access in (own, scene.view.of(caller)):
            access.rules.decide(Operation.READ, Kind.TOPIC, f"t{number}")
        counts.append(scene.view.cached_decisions.count)
    scene.allow("corp:bob")
    is_current = scene.view.is_current(own)
    after_change = scene.view.cached_decisions.count
    own.rules.decide(Operation.READ, Kind.TOPIC, "orders")

    assert (counts[0], max(counts)) == (2, 20)
    assert not is_current
    assert (after_change, scene.view.cached_decisions.count) == (0, 1)
