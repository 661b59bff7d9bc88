"""Snapshots of a real etcd: `etcdutl` restores each file, and a failed snapshot leaves no file under its name."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

import checkout
import etcd_build
from etcd_cluster import EtcdCluster
from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdOptions
from fairlead_broker.registry.store_writes import Put
from fairlead_operator.etcd_snapshots import SnapshotFailed, main, take_snapshot
from refusals import raises

ETCDUTL = checkout.ROOT / "tests/integration/cli/etcdutl_go"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BODY = b"a store" * 1000
WHOLE = BODY + hashlib.sha256(BODY).digest()


def etcdutl(*arguments: str) -> str:
    """Run etcdutl; return its output."""
    program = etcd_build.built("etcdutl", ETCDUTL, {"etcdutl": "go.etcd.io/etcd/etcdutl/v3"}) / "etcdutl"
    return subprocess.run([str(program), *arguments], check=True, capture_output=True, text=True).stdout


async def test_a_snapshot_is_whole_and_the_oldest_are_removed(alone: EtcdCluster, tmp_path: Path) -> None:
    """A snapshot can be restored even if a member was unreachable, and only the newest snapshots are kept."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    (folder / "main-20251231T000000Z.partial").write_bytes(b"interrupted")
    (folder / "other-20200101T000000Z.db").write_bytes(b"of another cluster")
    async with EtcdCoordination(EtcdOptions(alone.urls)) as client:
        for number in range(3):
            await client.transact((), (Put(f"/kept/{number}", bytes(1 << 20)),))
    urls = ("http://127.0.0.1:1", alone.urls[0])
    made = [
        await take_snapshot(urls, folder, "main", 2, NOON + timedelta(minutes=number)) for number in range(3)
    ]
    told = json.loads(etcdutl("snapshot", "status", str(folder / made[2].file), "--write-out=json"))
    etcdutl("snapshot", "restore", str(folder / made[2].file), "--data-dir", str(tmp_path / "restored"))

    assert names(folder) == [
        made[1].file,
        made[2].file,
        "other-20200101T000000Z.db",
    ]
    assert (folder / made[2].file).stat().st_size == made[2].bytes > 3 << 20
    assert told["revision"] == made[2].revision
    assert made[2].time == "2026-01-01T12:02:00Z"
    assert (folder / made[2].file).read_bytes()[-32:].hex() == made[2].sha256
    assert (tmp_path / "restored/member/snap/db").exists()


def names(folder: Path) -> list[str]:
    """Return the names of the files of a folder."""
    return sorted(each.name for each in folder.iterdir())


def part(blob: bytes, left: int) -> bytes:
    """Return one part of a stream as etcd's gateway sends it."""
    result = {"blob": base64.b64encode(blob).decode(), "remaining_bytes": str(left)}
    return json.dumps({"result": result}).encode() + b"\n"


@asynccontextmanager
async def gateway(lines: Sequence[bytes]) -> AsyncIterator[str]:
    """Run a stub of etcd's gateway whose snapshot has the given lines."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response({"header": {"revision": "7"}})

    async def snapshot(_: web.Request) -> web.Response:
        return web.Response(body=b"".join(lines))

    calls: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "/v3/maintenance/status": status,
        "/v3/maintenance/snapshot": snapshot,
    }
    app = web.Application()
    for path, call in calls.items():
        app.router.add_post(path, call)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "lines",
    [
        [part(WHOLE[:100], len(WHOLE) - 100)],
        [part(WHOLE[:100], len(WHOLE) - 100), part(b"x" + WHOLE[101:], 0)],
        [part(b"short", 0)],
        [b"{}\n"],
        [b'{"error": {"message": "no leader"}}'],
        [],
    ],
    ids=["ends early", "damaged", "too short", "empty object", "error", "nothing"],
)
async def test_half_a_snapshot_is_never_kept(tmp_path: Path, lines: list[bytes]) -> None:
    """A stream that is damaged, ends early or is not a snapshot leaves no file."""
    async with gateway(lines) as url:
        with pytest.raises(SnapshotFailed):
            await take_snapshot([url], tmp_path, "main", 1, NOON)

    assert names(tmp_path) == []


def test_the_program_writes_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program writes its result, or the reason for its failure, to a file."""
    result = tmp_path / "result"
    words = ("--etcd", "http://127.0.0.1:1", "--into", str(tmp_path), "--name", "main", "--keep", "1")
    code = main([*words, "--result", str(result)])

    assert code == 1
    assert "http://127.0.0.1:1" in result.read_text()
    assert capsys.readouterr().err.strip() == result.read_text()


async def test_a_whole_stream_is_kept(tmp_path: Path) -> None:
    """A snapshot that is streamed in two parts becomes one file, and a missing folder is reported as a failure."""
    async with gateway([part(WHOLE[:100], len(WHOLE) - 100), part(WHOLE[100:], 0)]) as url:
        made = await take_snapshot([url], tmp_path, "main", 1, NOON)
        with raises(SnapshotFailed, "missing"):
            await take_snapshot([url], tmp_path / "missing", "main", 1, NOON)

    assert (tmp_path / made.file).read_bytes() == WHOLE
    assert (made.bytes, made.revision) == (len(WHOLE), 7)
