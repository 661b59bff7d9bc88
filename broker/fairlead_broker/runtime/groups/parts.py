"""The consumer groups of a broker, put together and told of what they follow. For `broker_parts`."""

from __future__ import annotations

from fairlead_broker.clock import Clock
from fairlead_broker.coordination.group_store import GroupStore
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.groups.groups import Groups
from fairlead_broker.runtime.groups.meters import GroupMeters
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.telemetry import Log, Telemetry


def build_groups(
    entry: Entry,
    clock: Clock,
    positions: Positions,
    telemetry: Telemetry,
    supervisor: Supervisor,
    log: Log,
) -> Groups:
    """Make the groups of a broker that has entered its cluster; they follow its mirror and its life."""
    meters = GroupMeters(telemetry)
    store = GroupStore(entry.coordination, entry.keys)
    groups = Groups(store, entry.mirror, entry.life, clock, positions, meters, supervisor.spawn, log)
    meters.watch(lambda: len(groups), lambda: sum(each.group.member_count for each in groups))
    entry.mirror.subscribe(groups.changed)
    entry.life.subscribe(groups.life_changed)
    return groups
