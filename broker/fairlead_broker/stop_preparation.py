"""The preStop hook of a pod, which waits for the cluster's permit to restart the broker.

`fairlead broker prepare-stop` runs the hook. If the pods of two brokers are evicted at the same time, the brokers stop
one after the other: the second broker stops only when the first is running and in sync again. A broker hands over its
leaderships during its own stop, which begins with the signal that follows the hook. The module calls only the broker of
its own pod, through the data listener, and uses no other part of the broker.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from fairlead_broker.certificates.files import CA_FILE, CHAIN_FILE, KEY_FILE
from fairlead_broker.clock import Clock
from fairlead_broker.settings import Endpoint

ATTEMPT_SECONDS = 10.0
"""Timeout of one request in seconds. The election of a controller takes less time than this timeout."""
RETRY_SECONDS = 1.0
"""Number of seconds between two requests. The restart of another broker takes several seconds."""
UNANSWERED_SECONDS = 15.0
"""Number of seconds without the coordination store, or without an answer from the broker, after which waiting is
pointless: registrations have ended with their leases, so no broker can grant a permit. The time is longer than an
election in etcd and longer than a broker's session. All brokers of a deleted cluster stop after this time, because
its etcd stops with them.
"""
UNANSWERED_CODES = frozenset({"coordination_unavailable", "no_answer"})
"""Problem codes of a request to which no controller has responded. `no_answer` is the hook's own code."""
GONE_CODES = frozenset({"broker_not_found", "shutting_down"})
"""Problem codes after which waiting is pointless: the broker is unregistered, or already stopping."""


class Preparation(Enum):
    """Outcome of a stop preparation."""

    PERMITTED = "permitted"
    NOTHING_TO_DO = "nothing to do"
    TIME_IS_OVER = "time is over"


class StopPreparation:
    """Client that requests the permit to restart one broker."""

    def __init__(
        self,
        broker: int,
        listen: Endpoint,
        clock: Clock,
        wait: Callable[[float], None],
        report: Callable[[str], None],
        tls: Path | None = None,
        token_file: Path | None = None,
        peer_tls: Path | None = None,
    ) -> None:
        """`listen`: bound address of the broker's data listener, with its scheme.

        `wait` sleeps for a number of seconds, and `report` prints a line. `tls`: folder with the certificate of a data
        listener that uses TLS. `token_file`: file with the token of the pod's service account, which is read for each
        request. An unreadable file is ignored. `peer_tls`: folder with the certificate that the broker presents to its
        peers, and that the hook presents to a data listener that requests client certificates; by default `tls`.
        """
        self._token_file = token_file
        self._tls = tls if listen.scheme == "https" else None
        self._identity = peer_tls or self._tls
        self._broker = broker
        self._host = "127.0.0.1" if listen.everywhere else listen.host
        self._port = listen.port
        self._clock = clock
        self._wait = wait
        self._report = report

    def run(self, seconds_max: float) -> Preparation:
        """Request the permit until it is granted or no longer needed, or until a time limit is reached."""
        begun = self._clock.monotonic()
        end = begun + seconds_max
        reported, decided = "", begun
        while True:
            left = end - self._clock.monotonic()
            try:
                refusal = self._ask(max(1.0, min(ATTEMPT_SECONDS, left)))
            except ConnectionRefusedError:
                self._report(f"broker {self._broker} does not serve at {self._where}: nothing to wait for")
                return Preparation.NOTHING_TO_DO
            except (OSError, http.client.HTTPException) as error:
                refusal = "no_answer", f"no answer from {self._where}: {str(error) or type(error).__name__}"
            if refusal is None:
                waited = self._clock.monotonic() - begun
                self._report(f"broker {self._broker} may stop: it has the permit, after {waited:.1f} s")
                return Preparation.PERMITTED
            code, reason = refusal
            now = self._clock.monotonic()
            if code not in UNANSWERED_CODES:
                decided = now
            if code in GONE_CODES:
                self._report(f"broker {self._broker} does not need to wait: {reason}")
                return Preparation.NOTHING_TO_DO
            if reason != reported:
                self._report(f"broker {self._broker} waits for its permit: {reason}")
                reported = reason
            left = min(end, decided + UNANSWERED_SECONDS) - now
            if left <= 0:
                waited = now - begun
                self._report(f"broker {self._broker} stops without the permit after {waited:.1f} s: {reason}")
                return Preparation.TIME_IS_OVER
            self._wait(min(RETRY_SECONDS, left))

    @property
    def _where(self) -> str:
        return str(Endpoint(self._host, self._port))

    def _ask(self, seconds_max: float) -> tuple[str, str] | None:
        """Send one request for the permit.

        Returns None if the permit is granted, otherwise the problem's code and detail.
        """
        connection = self._connection(seconds_max)
        try:
            connection.request("POST", f"/v1/brokers/{self._broker}:request-restart", headers=self._headers())
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        return None if answer.status == http.client.OK else _problem(answer.status, body)

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return {}
        return {"Authorization": f"Bearer {token}"}

    def _connection(self, seconds_max: float) -> http.client.HTTPConnection:
        if self._tls is None or self._identity is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=seconds_max)
        try:
            context = _context(self._tls, self._identity)
        except ssl.SSLError as error:
            message = f"the certificate in {self._tls} cannot be used: {error}"
            raise OSError(message) from error
        return http.client.HTTPSConnection(self._host, self._port, timeout=seconds_max, context=context)


def _context(listener: Path, identity: Path) -> ssl.SSLContext:
    """Return the context for calls to the broker of this pod, with a certificate of the broker."""
    context = ssl.create_default_context(cafile=listener / CA_FILE)
    # The host name is not checked: the certificate lacks the loopback address, and the call stays on this machine.
    context.check_hostname = False
    context.load_cert_chain(identity / CHAIN_FILE, identity / KEY_FILE)
    return context


def _problem(status: int, body: bytes) -> tuple[str, str]:
    """Return the code and the detail of a problem document, or a text with the status for any other answer."""
    try:
        problem = json.loads(body)
        return str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return "", f"answer with status {status}"
