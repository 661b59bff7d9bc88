"""Refreshes the keys of all issuers at startup, regularly and for unknown key ids, and stores the keys (rule A17).

`wiring` runs the refresh in the background, and `signed_tokens` requests a fetch for an unknown key. A broker starts
even if an issuer's keys are missing, and refuses the issuer's tokens until the keys are fetched. The last fetched keys
are stored in a file of the data directory, so that a restart does not depend on the issuers. The file contains public
keys only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead_api.excerpts import shortened
from fairlead_broker.clock import Clock
from fairlead_broker.identity.issuer_keys import REFRESH_SECONDS, IssuerKeys
from fairlead_broker.identity.jose import KeysUnreadable, SkippedKey, read_keys
from fairlead_broker.identity.key_fetching import KeySource, KeysUnavailable
from fairlead_broker.telemetry import Log

FILE: Final = "issuer-keys.json"
RETRY_SECONDS: Final = 10.0
"""Seconds from a failed fetch to the next fetch."""


class _Kept(msgspec.Struct, frozen=True):
    """Keys of one issuer as stored in the file."""

    issuer: str
    fetched_us: int
    keys: list[dict[str, str]]


class KeyRefresh:
    """Fetches the keys of issuers."""

    def __init__(
        self,
        sources: Mapping[str, tuple[IssuerKeys, KeySource]],
        fetch: Callable[[KeySource], Awaitable[bytes]],
        file: Path,
        clock: Clock,
        log: Log,
        changed: Callable[[str, list[str]], None] = lambda *_: None,
    ) -> None:
        """`sources`: keys and their source, by the name of the issuer. `file`: file with the last fetched keys.

        `changed` is called with the name of an issuer and the ids of its keys after they have changed.
        """
        self._changed = changed
        self._sources = sources
        self._fetch = fetch
        self._file = file
        self._clock = clock
        self._log = log
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._skipped: dict[str, tuple[SkippedKey, ...]] = {}
        """Skipped keys of the last fetched set by the name of the issuer, so that each skipped key is logged once."""
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Read the keys stored by an earlier run. An unreadable file is ignored."""
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Kept])
        except (OSError, msgspec.MsgspecError):
            return
        for name, (keys, _) in self._sources.items():
            found = kept.get(name)
            if found is not None and found.issuer == keys.rules.issuer:
                keys.replace(read_keys(msgspec.json.encode({"keys": found.keys})).keys, found.fetched_us)

    async def run(self) -> None:
        """Fetch the keys of every issuer now and regularly, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name in self._sources:
                group.create_task(self._keep(name), name=f"issuer-{name}")

    def wanted(self, name: str, key_id: str | None) -> asyncio.Task[None] | None:
        """Return the task of a fetch that may find an unknown key of an issuer, or None if no fetch is due."""
        fetching = self._fetching.get(name)
        if fetching is not None:
            return fetching
        keys, _ = self._sources[name]
        if not keys.wants_fetch(key_id, self._clock.monotonic()):
            return None
        return self._begin(name)

    async def _keep(self, name: str) -> None:
        keys, _ = self._sources[name]
        while True:
            await asyncio.wait([self._fetching.get(name) or self._begin(name)])
            # No event announces a change to the issuer's keys.
            await asyncio.sleep(RETRY_SECONDS if keys.failing else REFRESH_SECONDS)  # noqa: TID251

    def _begin(self, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._refresh(name), name=f"issuer-keys-{name}")
        self._fetching[name] = task
        task.add_done_callback(lambda _: self._fetching.pop(name, None))
        return task

    async def _refresh(self, name: str) -> None:
        keys, source = self._sources[name]
        keys.attempt(self._clock.monotonic())
        try:
            # Parsing large keys takes milliseconds, so the keys are read in a thread.
            found = await asyncio.to_thread(read_keys, await self._fetch(source))
        except (KeysUnavailable, KeysUnreadable) as error:
            if keys.failing is None:
                self._log.warning("issuer keys not fetched", issuer=name, reason=str(error))
            keys.fail(str(error))
            return
        self._report_skipped(name, found.skipped)
        if keys.replace(found.keys, self._clock.now_us()):
            self._log.info("issuer keys changed", issuer=name, keys=[key.key_id for key in found.keys])
            self._changed(name, [key.key_id or "" for key in found.keys])
        # The file contains the time of the last fetch, from which the keys are valid for a day.
        await self._write()

    def _report_skipped(self, name: str, skipped: tuple[SkippedKey, ...]) -> None:
        """Log each skipped key that the previous set did not contain.

        Tokens with unknown keys cause further fetches, and many issuers publish keys for encryption next to their other
        keys, so logging all skipped keys after each fetch would fill the log.
        """
        known = self._skipped.get(name, ())
        self._skipped[name] = skipped
        for each in skipped:
            if each not in known:
                key_id = None if each.key_id is None else shortened(each.key_id)
                self._log.warning("issuer key skipped", issuer=name, key_id=key_id, reason=each.reason)

    async def _write(self) -> None:
        kept = {
            name: _Kept(keys.rules.issuer, keys.fetched_us, [dict(key.public) for key in keys.keys])
            for name, (keys, _) in self._sources.items()
            if keys.fetched_us is not None
        }
        async with self._writing:
            try:
                await asyncio.to_thread(_replace, self._file, msgspec.json.encode(kept))
            except OSError as error:
                self._log.warning("issuer keys not written", path=str(self._file), reason=str(error))


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_suffix(".new")
    made.write_bytes(content)
    made.replace(file)
