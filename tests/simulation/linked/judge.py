"""Invariants of a topic in two clusters, with the names of the rules that they express."""

from __future__ import annotations

from dataclasses import dataclass, field

from linked.cluster import Cluster, Stored
from simulator.judge import EpochsRise, Liveness, Violation


class ErasDistinguish(Violation):
    """Two logs have different records with one leader epoch and offset."""


class MirrorIsPrefix(Violation):
    """A mirror has a record that no writer has written, or has it at another offset."""


class AccountedGaps(Violation):
    """A mirror lacks records of its source that it does not count as skipped, or the counters are wrong."""


class AcknowledgedIsKept(Violation):
    """An acknowledged record is in no log and no tail file, and no source has lost or deleted it."""


class PlannedLosesNothing(Violation):
    """A hand-over ended without an acknowledged record."""


class OneWriter(Violation):
    """A cluster acknowledged a record beyond the end that it told when it handed the topic over."""


class NoCycle(Violation):
    """A record is in a log twice, or a cluster mirrors its own topic."""


class NeverAhead(Violation):
    """An offset of a group was copied from above the high watermark of the mirror."""


class IdsApart(Violation):
    """A new producer got the id of a producer that a log already knows."""


class WritesContinue(Liveness):
    """After the faults, no cluster accepts records, or a mirror does not reach the end of its source."""


@dataclass
class Judge:
    """Everything that was written, and the checks of each state."""

    written: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    """Bytes by partition, leader epoch and offset."""
    acknowledged: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)
    """Records that an unclean election lost, or that retention deleted."""

    def wrote(self, partition: int, entry: Stored) -> None:
        """Record the bytes of a leader's append."""
        key = (partition, entry.epoch, entry.offset)
        if self.written.setdefault(key, entry.data) != entry.data:
            msg = f"epoch {entry.epoch} has two records at offset {entry.offset}"
            raise ErasDistinguish(msg)

    def acknowledges(self, cluster: Cluster, partition: int, entries: list[Stored]) -> None:
        """Record acknowledgements."""
        self.acknowledged.update(each.value for each in entries)
        if entries and entries[-1].offset >= cluster.told_ends.get(partition, entries[-1].offset + 1):
            msg = f"{cluster.name} acknowledged {entries[-1].value!r} after its end was told"
            raise OneWriter(msg)

    def check(self, clusters: list[Cluster]) -> None:
        """Check every log."""
        kept = set(self.gone)
        for cluster in clusters:
            kept |= cluster.tail
            for index, partition in enumerate(cluster.partitions):
                values = [each.value for each in partition.log]
                kept.update(values)
                if len(values) != len(set(values)):
                    msg = f"{cluster.name}: {values}"
                    raise NoCycle(msg)
                epochs = [each.epoch for each in partition.log]
                if epochs != sorted(epochs) or (
                    cluster.is_copying and epochs and epochs[-1] > partition.epoch
                ):
                    msg = f"{cluster.name}: {epochs} below {partition.epoch}"
                    raise EpochsRise(msg)
                for entry in partition.log:
                    if self.written.get((index, entry.epoch, entry.offset)) != entry.data:
                        msg = f"{cluster.name}: {entry.value!r} at {entry.offset}"
                        raise MirrorIsPrefix(msg)
        if missing := self.acknowledged - kept:
            msg = f"{sorted(missing)}"
            raise AcknowledgedIsKept(msg)

    def finished(self, cluster: Cluster, others: list[Cluster]) -> None:
        """Check a hand-over that has ended."""
        kept = {each.value for partition in cluster.partitions for each in partition.log}
        kept = kept.union(self.gone, cluster.tail, *(each.tail for each in others))
        if missing := self.acknowledged - kept:
            msg = f"{cluster.name} lacks {sorted(missing)}"
            raise PlannedLosesNothing(msg)

    def compare(self, mirror: Cluster, source: Cluster) -> None:
        """Check that a mirror at rest has every record of its source from its own start on, but for counted gaps."""
        for own, other in zip(mirror.partitions, source.partitions, strict=True):
            if own.end != other.end:
                msg = f"the mirror ends at {own.end}, the source at {other.end}"
                raise WritesContinue(msg)
            lacking = {each.offset for each in other.log if each.offset >= own.log_start} - {
                each.offset for each in own.log
            }
            if lacking - own.skipped:
                msg = f"{mirror.name} lacks {sorted(lacking - own.skipped)}"
                raise AccountedGaps(msg)
            there = {each.offset: each.data for each in other.log}
            for each in own.log:
                if there.get(each.offset, each.data) != each.data:
                    msg = f"{mirror.name} has another record than its source at {each.offset}"
                    raise MirrorIsPrefix(msg)
            covered = {each.offset for each in own.log}
            if uncounted := set(range(own.log_start, own.end)) - covered - own.skipped - other.missing():
                msg = f"{mirror.name} has an uncounted gap: {sorted(uncounted)}"
                raise AccountedGaps(msg)
