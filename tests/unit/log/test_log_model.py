"""A partition log, which Hypothesis compares with a list of batches."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset, TimestampUs
from fairlead_broker.log import PartitionLog, StampedBatch
from log_kit import FIRST_TIME_US, BatchMaker, LogBox, read_all, stored


class LogMachine(RuleBasedStateMachine):
    """A partition log and a list of batches, which contain the same batches after every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="fairlead-model-"))
        self.make = BatchMaker()
        self.batches: list[StampedBatch] = []
        self.epochs: list[tuple[int, int]] = []
        self.log_start = 0
        self.box: LogBox | None = None
        self.log: PartitionLog | None = None

    @initialize(
        segment_bytes=st.integers(700, 6000),
        index_interval_bytes=st.integers(0, 2000),
        durability=st.sampled_from(list(Durability)),
    )
    def open(self, segment_bytes: int, index_interval_bytes: int, durability: Durability) -> None:
        """Start with an empty log and drawn limits."""
        config = TopicConfig(
            segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes, durability=durability
        )
        self.box = LogBox(self.root / "data", config)
        self.reopen()
        self.begin_epoch(1)

    @property
    def opened(self) -> PartitionLog:
        """The open log."""
        assert self.log is not None
        return self.log

    @property
    def data(self) -> LogBox:
        """The data directory."""
        assert self.box is not None
        return self.box

    @property
    def end(self) -> int:
        """Expected end offset of the log."""
        return self.batches[-1].last_offset + 1 if self.batches else self.log_start

    def reopen(self) -> None:
        """Open the data directory and its log."""
        self.log = self.data.open()

    @rule(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 400)), min_size=1, max_size=6))
    def append(self, sizes: list[tuple[int, int]]) -> None:
        """Append a group of batches in an epoch that has begun."""
        if not self.epochs or self.epochs[-1][0] != self.make.leader_epoch:
            self.begin_epoch(1)
        group, end = [], self.end
        for records, value_bytes in sizes:
            group.append(self.make(end, records, value_bytes))
            end += records
        self.opened.append(group)
        self.batches += group

    @rule()
    def sync(self) -> None:
        """Sync the log. The next start finds the synced offset even without a checkpoint."""
        assert self.opened.sync() == self.end

    @rule()
    def checkpoint(self) -> None:
        """Write the checkpoint."""
        self.data.opened.write_checkpoint()

    @rule(ahead=st.integers(1, 3))
    def begin_epoch(self, ahead: int) -> None:
        """Begin a leader epoch."""
        epoch = (self.epochs[-1][0] if self.epochs else 0) + ahead
        self.opened.begin_epoch(LeaderEpoch(epoch))
        self.epochs.append((epoch, self.end))
        self.make.leader_epoch = epoch

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Truncate the log at an offset."""
        offset = max(self.log_start, round(self.end * share))
        if offset >= self.end:
            return
        end = self.opened.truncate_to(Offset(offset))
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.log_start = min(self.log_start, end)

        assert end <= offset
        assert not self.batches or end == self.batches[-1].last_offset + 1
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.end]

    @rule(share=st.floats(0, 1))
    def move_log_start(self, share: float) -> None:
        """Advance the log start to an offset."""
        offset = max(self.log_start, round(self.end * share))
        if offset >= self.end:
            return
        self.opened.checkpoint_high_watermark = self.opened.end_offset
        self.opened.advance_log_start(Offset(offset))
        self.log_start = offset
        older = sum(start < offset for _, start in self.epochs)
        self.epochs = self.epochs[max(older - 1, 0) :]

    @rule()
    def roll(self) -> None:
        """Roll the last segment because of its age."""
        config = self.data.config
        self.opened.update_config(replace(config, segment_ms=1))
        self.opened.roll_if_due(TimestampUs(FIRST_TIME_US + 10_000))
        self.opened.update_config(config)

    @rule()
    def stop(self) -> None:
        """Stop the log gracefully, and start it without a scan."""
        self.data.stop()
        self.reopen()

        assert self.opened.recovery_report.scanned_bytes == 0

    @rule()
    def kill(self) -> None:
        """Kill the log and start it again; all written bytes in the page cache must be found."""
        self.data.kill()
        self.reopen()

        assert self.opened.recovery_report.cuts == []
        assert self.opened.damaged == ()

    @rule(share=st.floats(0, 1))
    def tear(self, share: float) -> None:
        """Kill the log and lose the last unsynced bytes of the last segment."""
        synced = self.opened.synced_offset
        self.data.kill()
        path = self.data.log_files()[-1]
        held = [batch for batch in self.batches if batch.base_offset >= int(path.stem)]
        unsynced = [batch for batch in held if batch.base_offset >= synced]
        nbytes = round(sum(batch.nbytes for batch in unsynced) * share)
        if nbytes:
            path.write_bytes(path.read_bytes()[:-nbytes])
        while unsynced and nbytes > 0:
            nbytes -= unsynced.pop().nbytes
            self.batches.pop()
        self.reopen()
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start <= self.end]

    @rule(share=st.floats(0, 1), bytes_max=st.integers(1, 5000))
    def read(self, share: float, bytes_max: int) -> None:
        """Read whole batches, beginning with the batch that contains an offset."""
        offset = max(self.log_start, round(self.end * share))
        if offset >= self.end:
            return
        wanted = [batch for batch in self.batches if batch.last_offset >= offset]
        found = self.opened.read(Offset(offset), bytes_max, self.opened.end_offset)

        assert stored(*wanted).startswith(found.data)
        assert len(found.data) >= wanted[0].nbytes
        assert len(found.data) <= max(bytes_max, wanted[0].nbytes)
        cached = self.opened.read_cached(Offset(offset), bytes_max, self.opened.end_offset)
        assert cached is None or (cached.data, cached.next_offset) == (found.data, found.next_offset)

    @invariant()
    def same(self) -> None:
        """Compare the batches, offsets and epochs of the log and the list."""
        if self.log is None:
            return
        kept = [batch for batch in self.batches if batch.last_offset >= self.log_start]

        assert self.log.end_offset == self.end
        assert self.log.log_start_offset == self.log_start
        assert self.log_start <= self.log.synced_offset <= self.end
        assert read_all(self.log, 3000) == stored(*kept)
        assert [(entry.epoch, entry.start_offset) for entry in self.log.leader_epochs] == self.epochs

    def teardown(self) -> None:
        """Remove the files of the log."""
        if self.box is not None:
            self.box.kill()
        shutil.rmtree(self.root)


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=20,
    stateful_step_count=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


def test_a_log_that_lost_all_its_records_has_no_epochs_after_a_kill() -> None:
    """A log without records has no epochs after a kill, although its file still has batches below the log start."""
    machine = LogMachine()
    machine.open(segment_bytes=1296, index_interval_bytes=0, durability=Durability.SYNCED)
    try:
        machine.append([(1, 0)])
        machine.begin_epoch(1)
        machine.append([(2, 0)])
        machine.move_log_start(0.5)
        machine.truncate(0.0)
        machine.same()
        machine.kill()
        machine.same()
    finally:
        machine.teardown()
