"""Watches the certificate files: the first load, and the replacement of certificates in a running broker (rule T7).

`wiring` loads all material when the broker starts, and a fault then ends the broker. `wiring` also runs the watch,
which reads changed files. While the broker runs, a fault changes nothing: the previous certificate stays in use, and
the fault is logged once. Metrics show the validity of each certificate and the replacements (rule T10). The module must
not depend on listeners, which subscribe to changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from fairlead_broker.certificates.files import CA_FILE, CHAIN_FILE, KEY_FILE
from fairlead_broker.certificates.material import Material, MaterialRefused, Side, read_material
from fairlead_broker.clock import Clock
from fairlead_broker.telemetry import Telemetry

LOOK_SECONDS: Final = 10.0
"""Seconds between two checks of the files. A change to a mounted Secret reaches the files of a pod within about a
minute.
"""

FileState: TypeAlias = tuple[int, int, int, int] | None
Load: TypeAlias = Callable[[Side, Material], Awaitable[None]]
Report: TypeAlias = Callable[[Side, Material], None]
TlsFault: TypeAlias = Callable[[bytes | None, bytes | None], str | None]
"""Function that returns the reason why a TLS library refuses authorities, or a certificate with its key; None if it
accepts them.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Certificate files of one listener, and the hosts by which callers reach the listener."""

    side: Side
    folder: Path
    hosts: tuple[str, ...]
    client_ca: tuple[Path, ...] = ()
    """Files with the authorities of clients; empty if clients need no certificate."""

    def read(self, now_us: int) -> Material:
        """Read and check the files. Raises `MaterialRefused`."""
        return read_material(
            self.folder, self.side, hosts=self.hosts, now_us=now_us, client_ca=self.client_ca
        )

    def states(self) -> tuple[FileState, ...]:
        """Return the identity, size and modification time of each file; the values change with the file's content."""
        names = [self.folder / name for name in (CHAIN_FILE, KEY_FILE, CA_FILE)]
        return tuple(_state(file) for file in (*names, *self.client_ca))


def checked(source: Source, now_us: int, tls_fault: TlsFault) -> Material:
    """Read the files of a listener and check them, including a check by the TLS library. Raises `MaterialRefused`."""
    material = source.read(now_us)
    identity, clients = material.key_pem + material.chain_pem, material.client_ca_pem or b""
    fault = tls_fault(material.ca_pem + clients, identity)
    if fault is not None:
        file = source.folder / CA_FILE
        if tls_fault(None, identity) is not None:
            file = source.folder / CHAIN_FILE
        elif source.client_ca and tls_fault(material.ca_pem, None) is None:
            file = source.client_ca[0]
        raise MaterialRefused(file, f"is refused by TLS ({fault})", "certificates that TLS can use")
    return material


class Certificates:
    """Certificates of a broker's listeners, by listener."""

    def __init__(
        self, sources: Sequence[Source], clock: Clock, telemetry: Telemetry, tls_fault: TlsFault
    ) -> None:
        """`tls_fault` checks each certificate with the TLS library that will use it.

        The HTTP server ends the process on a certificate that its TLS library refuses.
        """
        self._tls_fault = tls_fault
        self._sources = {source.side: source for source in sources}
        self._clock = clock
        self._log = telemetry.log
        self._expiry = telemetry.metric("fairlead_tls_certificate_expiry_timestamp_seconds")
        self._start = telemetry.metric("fairlead_tls_certificate_start_timestamp_seconds")
        self._reloads = telemetry.metric("fairlead_tls_reloads_total")
        self._failures = telemetry.metric("fairlead_tls_reload_failures_total")
        self._states: dict[Side, tuple[FileState, ...]] = {}
        self._faults: dict[Side, tuple[tuple[FileState, ...], str]] = {}
        """State and fault of the files of each listener for which the last check failed. Files with a fault are read
        again at each check.
        """
        self._materials: dict[Side, Material] = {}
        self._subscribers: list[tuple[Load, Report]] = []
        self._look = asyncio.Event()

    @property
    def materials(self) -> Mapping[Side, Material]:
        """Certificates in use: new connections already get them."""
        return self._materials

    def load(self) -> None:
        """Read all files for the first time. Raises `MaterialRefused`."""
        for side, source in self._sources.items():
            # The state of the files is read before their content, so the next check notices a change during the read.
            self._states[side] = source.states()
            self._use(side, checked(source, self._clock.now_us(), self._tls_fault))
            self._reloads.labels(side.value)
            self._failures.labels(side.value)

    def subscribe(self, load: Load, report: Report) -> None:
        """Call `load` with each new certificate of each listener, and then, when it is in use, `report`.

        The watch waits until `load` returns. Until then, `materials` contains the previous certificate, because the
        operator removes an authority as soon as every broker reports a certificate of the next authority (rule K5).
        """
        self._subscribers.append((load, report))

    def look_now(self) -> None:
        """Check the files at once instead of at the end of the interval."""
        self._look.set()

    async def run(self) -> None:
        """Check the files every ten seconds until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look.wait()
            self._look.clear()
            for side, source in self._sources.items():
                await self._look_at(side, source)

    async def _look_at(self, side: Side, source: Source) -> None:
        states = await asyncio.to_thread(source.states)
        if states == self._states[side] and side not in self._faults:
            return
        try:
            material = await asyncio.to_thread(checked, source, self._clock.now_us(), self._tls_fault)
        except MaterialRefused as refused:
            self._refuse(side, states, refused)
            return
        self._states[side] = states
        if material == self._materials[side]:
            self._faults.pop(side, None)
            return
        try:
            for load, _ in self._subscribers:
                await load(side, material)
        except OSError as error:
            # Too few file descriptors were free to load the certificate. The next check of the files tries to load the
            # certificate again.
            reason = error.strerror or str(error)
            self._refuse(
                side, states, MaterialRefused(self._sources[side].folder, reason, "free descriptors")
            )
            return
        self._use(side, material)
        for _, report in self._subscribers:
            report(side, material)
        self._faults.pop(side, None)
        self._reloads.labels(side.value).inc()
        facts = material.facts
        self._log.info(
            "certificate replaced",
            listener=side.value,
            certificate_sha256=facts.certificate_sha256,
            not_after_us=facts.not_after_us,
        )

    def _use(self, side: Side, material: Material) -> None:
        self._materials[side] = material
        self._start.labels(side.value).set(material.facts.not_before_us / 1e6)
        self._expiry.labels(side.value).set(material.facts.not_after_us / 1e6)

    def _refuse(self, side: Side, states: tuple[FileState, ...], refused: MaterialRefused) -> None:
        fault = (states, str(refused))
        if self._faults.get(side) == fault:
            return
        self._faults[side] = fault
        self._failures.labels(side.value).inc()
        self._log.error(
            "certificate not replaced; the previous one stays in use",
            listener=side.value,
            file=str(refused.file),
            fault=refused.fault,
            allowed=refused.allowed,
        )


def _state(file: Path) -> FileState:
    """Return the identity, size and modification time of a file; None for a missing file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
