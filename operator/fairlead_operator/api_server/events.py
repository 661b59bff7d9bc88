"""Events on objects, as shown by `kubectl describe`. A repeated message increases the count of the existing Event.

The name of an Event is derived from its object and message, so that a restarted operator or another leader finds the
existing Event. A repetition updates the Event's count and the time of its last occurrence. Repetitions beyond a burst
are counted in memory and written together with a later repetition, since a persistent state must not cause a steady
stream of writes.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from fairlead_operator.clock import Clock
from fairlead_operator.naming import EVENT, FIELD_MANAGER, Kind, Manifest, ObjectRef
from fairlead_operator.ports import ApiError, Conflict, EventType, NotFound
from fairlead_operator.telemetry import Log

BURST: Final = 10
"""Number of repetitions of one Event that are written immediately, so that a user who repeats an action sees each
repetition."""
REFILL_SECONDS: Final = 60.0
"""Interval after which one more repetition of an Event may be written, up to `BURST`."""
REMEMBERED_MAX: Final = 4096
"""Maximum number of written Events that are remembered. A forgotten Event costs one request that fails with a
conflict."""
MESSAGE_CHARACTERS_MAX: Final = 1000
"""Maximum length of the message of an Event: the API server refuses notes above 1,024 bytes."""
INSTANCE_CHARACTERS_MAX: Final = 128
CLUSTERWIDE_NAMESPACE: Final = "default"
"""Namespace for Events on objects that have no namespace."""


class EventCalls(Protocol):
    """API calls for Events."""

    async def get(self, ref: ObjectRef) -> Manifest | None:
        """Return the Event; None if the Event does not exist."""
        ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Create the object. Raises `Conflict` if the object exists."""
        ...

    async def patch(self, ref: ObjectRef, patch: Manifest) -> Manifest:
        """Apply a merge patch."""
        ...


@dataclass(slots=True)
class _Written:
    count: int
    """Number of occurrences of the Event, including occurrences that are not written yet."""
    writes_left: float
    """Number of repetitions that could still be written at the time `at`."""
    at: float

    def may_write(self, now: float) -> bool:
        """Return whether a repetition may be written now; a permitted repetition reduces the allowance."""
        self.writes_left = min(float(BURST), self.writes_left + (now - self.at) / REFILL_SECONDS)
        self.at = now
        if self.writes_left < 1:
            return False
        self.writes_left -= 1
        return True


class Events:
    """Writes Events; errors from the API server are logged, not raised."""

    def __init__(self, api: EventCalls, clock: Clock, log: Log, *, instance: str) -> None:
        self._api = api
        self._clock = clock
        self._log = log
        self._instance = instance[:INSTANCE_CHARACTERS_MAX]
        self._written: OrderedDict[ObjectRef, _Written] = OrderedDict()

    async def write(self, about: Manifest, type_: EventType, reason: str, message: str) -> None:
        """Write the Event, or only count its repetition."""
        message = message[:MESSAGE_CHARACTERS_MAX]
        ref = _name_of(about, type_, reason, message)
        now = self._clock.monotonic()
        written = self._written.get(ref)
        if written is not None and not written.may_write(now):
            written.count += 1
            return
        try:
            count = await self._write(ref, about, type_, reason, message, written)
        except ApiError as error:
            self._log.warning(
                "Event not written", object=str(ref), reason=reason, message=message, error=str(error)
            )
            if written is not None:
                written.count += 1
            return
        if written is None:
            written = self._written[ref] = _Written(count, BURST, now)
        written.count = count
        self._written.move_to_end(ref)
        if len(self._written) > REMEMBERED_MAX:
            self._written.popitem(last=False)

    async def _write(
        self,
        ref: ObjectRef,
        about: Manifest,
        type_: EventType,
        reason: str,
        message: str,
        written: _Written | None,
    ) -> int:
        """Create or update the Event; return the new count of the Event."""
        stamp = _micro_time(self._clock.now())
        if written is None:
            try:
                await self._api.create(EVENT, self._event(ref, about, type_, reason, message, stamp))
            except Conflict:
                pass
            else:
                return 1
        count = await self._count(ref, written) + 1
        series = {"count": max(2, count), "lastObservedTime": stamp}
        try:
            await self._api.patch(ref, {"series": series})
        except NotFound:
            # The API server has deleted the Event: Events are kept for an hour.
            await self._api.create(EVENT, self._event(ref, about, type_, reason, message, stamp))
            return 1
        return max(2, count)

    async def _count(self, ref: ObjectRef, written: _Written | None) -> int:
        if written is not None:
            return written.count
        live = await self._api.get(ref) or {}
        return int((live.get("series") or {}).get("count", 1))

    def _event(
        self, ref: ObjectRef, about: Manifest, type_: EventType, reason: str, message: str, stamp: str
    ) -> Manifest:
        metadata = about["metadata"]
        regarding = {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        }
        if metadata.get("namespace"):
            regarding["namespace"] = metadata["namespace"]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "eventTime": stamp,
            "reportingController": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "action": reason,
            "reason": reason,
            "type": type_,
            "regarding": regarding,
            "note": message,
        }


def _name_of(about: Manifest, type_: str, reason: str, message: str) -> ObjectRef:
    metadata = about["metadata"]
    words = "\0".join((about["kind"], metadata.get("uid", ""), type_, reason, message))
    digest = hashlib.sha256(words.encode()).hexdigest()[:16]
    namespace = metadata.get("namespace") or CLUSTERWIDE_NAMESPACE
    return ObjectRef(EVENT, namespace, f"{metadata['name'][:230].rstrip('-.')}.{digest}")


def _micro_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
