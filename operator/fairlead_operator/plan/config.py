"""Which dynamic keys of the cluster are altered so that it has what its resource says.

Keys that can change while brokers run are compared with what the cluster says, and only the differences are written;
one that is gone from the spec is reset, since the resource is the source. Must not know how values reach the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.configuration import ConfigEntry, ConfigInput, ConfigSource


def changes(wanted: Mapping[str, str], entries: Mapping[str, ConfigEntry]) -> dict[str, ConfigInput]:
    """Return what to alter so that the cluster has exactly these keys set; nothing where it has.

    A key that the cluster does not list is left out: an older broker does not know it.
    """
    differing = dict[str, ConfigInput]()
    for name, entry in entries.items():
        is_set = entry.source == ConfigSource.CLUSTER
        if name in wanted:
            if not is_set or entry.value != wanted[name]:
                differing[name] = wanted[name]
        elif is_set:
            differing[name] = None
    return differing
