"""Whether a restart has kept what was written and not synced: the page cache outlives the process, not the kernel.

For `cluster_entry`, which registers `intact_since` by it (protocol section 3, rule 1). A replica that may have lost its
unsynced tail must not be elected on the strength of having had it.
"""

from __future__ import annotations

import os
from pathlib import Path

from fairlead_api.identifiers import BrokerEpoch
from fairlead_broker.log.documents import Identity

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def residence_of(data: Path) -> str | None:
    """Name the running kernel and the volume of a directory; None where the system does not tell. Reads files."""
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
        volume = os.statvfs(data).f_fsid
        device = data.stat().st_dev
    except OSError:
        return None
    return f"{boot}/{device:x}-{volume:x}"


def kept_since(identity: Identity, *, was_clean: bool, residence: str | None) -> BrokerEpoch | None:
    """Return the oldest life from which everything written is still there; None where this start may have lost some.

    `was_clean`: the last stop synced everything. A clean start does not mend what an earlier one lost: that is why the
    directory remembers how far back it goes.
    """
    same_kernel = residence is not None and residence == identity.residence
    if not identity.last_broker_epoch or not (was_clean or same_kernel):
        return None
    since = identity.intact_since
    if since is None or since > identity.last_broker_epoch:
        # Written by an earlier release, or in the numbers of a store from which coordination has moved away.
        since = identity.last_broker_epoch
    return BrokerEpoch(since)
