"""Proofs of brokers: how long a proof is valid, and which proofs are refused (rule A20)."""

from __future__ import annotations

import base64

import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId
from fairlead_broker.peers.proofs import (
    RENEW_SECONDS,
    VALID_SECONDS,
    BrokerKey,
    ProofChecker,
    ProofMaker,
    ProofRefused,
)

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
CLUSTER = "cluster"
KEY = BrokerKey("one")


class Hands:
    """Clock whose monotonic time is set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the time that the test has set."""
        return self.now


class Sender:
    """Broker 1, whose epoch the test can change."""

    def __init__(
        self, key: BrokerKey = KEY, cluster: str = CLUSTER, broker: BrokerId = ONE, epoch: int = 7
    ) -> None:
        self.clock, self.epoch = Hands(), BrokerEpoch(epoch)
        self._maker = ProofMaker(key, cluster, broker, lambda: self.epoch, self.clock)  # type: ignore[arg-type]

    def proof(self, target: BrokerId = TWO, seconds: float = 0) -> str:
        """Return a proof some seconds after the start of the broker."""
        self.clock.now = 1000.0 + seconds
        return self._maker.proof(target)


def accepts(checker: ProofChecker, proof: str, epoch: int = 7) -> bool:
    """Return whether a broker accepts a proof made by broker 1 in an epoch."""
    try:
        checker.check(proof, ONE, BrokerEpoch(epoch), KEY.public)
    except ProofRefused:
        return False
    return True


def test_a_proof_is_made_once_in_half_a_minute() -> None:
    """A broker reuses its proof for a target for half a minute, and creates a new proof in a new incarnation."""
    sender = Sender()
    first = sender.proof()

    assert sender.proof(seconds=RENEW_SECONDS - 1) == first
    assert sender.proof(THREE) != first
    assert sender.proof(seconds=RENEW_SECONDS) != first
    sender.epoch = BrokerEpoch(9)
    assert not accepts(ProofChecker(CLUSTER, TWO), sender.proof())
    assert accepts(ProofChecker(CLUSTER, TWO), sender.proof(), epoch=9)


def test_an_old_proof_is_refused_after_newer_ones() -> None:
    """A target refuses a proof that is more than a minute older than the newest proof from the same broker.

    A proof that was intercepted in the network soon becomes useless.
    """
    sender, checker = Sender(), ProofChecker(CLUSTER, TWO)
    taken = sender.proof()
    for seconds in range(0, VALID_SECONDS + 1, RENEW_SECONDS):
        assert accepts(checker, sender.proof(seconds=seconds))
    assert accepts(checker, taken)
    for number in range(1, 9):
        assert accepts(checker, sender.proof(seconds=VALID_SECONDS + number * RENEW_SECONDS))

    assert not accepts(checker, taken)
    sender.epoch = BrokerEpoch(9)
    assert accepts(checker, sender.proof(), epoch=9)
    assert not accepts(checker, taken, epoch=9)


@pytest.mark.parametrize(
    "proof",
    [
        "",
        "a.b.c",
        Sender().proof(THREE),
        Sender(epoch=6).proof(),
        Sender(broker=THREE).proof(),
        Sender(cluster="other").proof(),
        Sender(BrokerKey("other")).proof(),
        Sender().proof()[:-2],
        Sender().proof() + "\u00e9",
        Sender().proof().replace(".", "..", 1),
        Sender().proof() + "A" * 1024,
        base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
        + "."
        + Sender().proof().split(".", 1)[1],
        KEY.signed(b"{}"),
        KEY.signed(b'{"sub":1,"epoch":7,"aud":2,"cid":"cluster","age":-1}'),
    ],
)
def test_what_proves_nothing_is_refused(proof: str) -> None:
    """A proof with a different target, broker, epoch, cluster or key is refused, as is a text that is not a proof."""
    assert not accepts(ProofChecker(CLUSTER, TWO), proof)
