"""Hundreds of readers without a group start and stop while groups read the same topic undisturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import pytest

from chaos_cluster import http_client, pause
from chaos_run import TOPIC, ChaosRun
from fairlead import Admin, Consumer, FairleadError
from fairlead_api.bodies.group_answers import LagAnswer
from group_clients import GROUP
from group_runs import LONG, finish, group_run, settled, start_members
from group_watch import ask_any

pytestmark = pytest.mark.etcd
READERS: Final = 500
AT_ONCE: Final = 50
LAG_SECONDS_MAX: Final = 15.0
"""Maximum lag in seconds on a loaded machine; lower than the lag of a group that makes no progress."""


class _LagWatch:
    """Requests the lag of the group repeatedly."""

    def __init__(self, run: ChaosRun) -> None:
        self._run = run
        self.stopping = asyncio.Event()
        self.seconds: list[float] = []
        self.committed: list[int] = []

    async def run(self) -> None:
        """Ask until stopped."""
        async with http_client() as client:
            while not self.stopping.is_set():
                answer = await ask_any(self._run.cluster, client, f"/v1/groups/{GROUP}/lag")
                if answer is not None:
                    lag = msgspec.json.decode(answer.body, type=LagAnswer)
                    self.seconds.append(lag.max_seconds)
                    self.committed.append(sum(each.committed_offset or 0 for each in lag.lag))
                await pause(0.2)


async def _pass_by(run: ChaosRun, turns: asyncio.Semaphore) -> int:
    """Read one batch of any partition, close the reader, and return the number of records."""
    async with turns, asyncio.timeout(60):
        while True:
            try:
                async with Consumer(run.cluster.urls) as consumer:
                    await consumer.assign(topic=TOPIC)
                    batch = await consumer.next_batch("20s")
                    return 0 if batch is None else len(batch.offsets)
            except FairleadError as error:
                run.history.note("note", "ok", passer=str(error))


@pytest.mark.scenario
@pytest.mark.timeout(300)
async def test_hundreds_of_passing_readers_do_not_touch_a_group(tmp_path: Path) -> None:
    """Consumers without a group create no group, commit nothing and move no partition, and do not delay a group."""
    async with group_run(tmp_path) as run:
        readers = start_members(run, 2, **LONG)
        epoch = await settled(run, 2)
        came = [reader.assigned for reader in readers]
        watch = _LagWatch(run)
        run.start(watch)
        turns = asyncio.Semaphore(AT_ONCE)
        got = await asyncio.gather(*(_pass_by(run, turns) for _ in range(READERS)))
        seen = len(watch.seconds)
        async with Admin(run.cluster.urls) as admin:
            groups = [each.group for each in await admin.list_groups()]
        assert min(got) > 0, "some readers got no record"
        assert seen > 1
        assert max(watch.seconds) < LAG_SECONDS_MAX
        assert watch.committed == sorted(watch.committed)
        assert watch.committed[-1] > watch.committed[0], "the group made no progress"
        assert groups == [GROUP]
        assert await settled(run, 2) == epoch
        assert [reader.assigned for reader in readers] == came
        assert await finish(run) == 0, "no partition moved, so that no record may be delivered twice"
