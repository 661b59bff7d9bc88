"""Spark's source and sink against brokers that use TLS and enforce access rules (rules C2, C7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import testing
from fairlead.blocking import Admin
from quick_java import quick_java
from spark_session import QUICK_WORKERS

PROGRAM = Path(__file__).parent / "secured_program.py"


@pytest.mark.scenario
def test_spark_names_its_callers_and_shows_no_token(tmp_path: Path) -> None:
    """Batches, streams and writes work with token files of driver and executor, a file option, or a token's text.

    The token of a running stream is replaced and revoked. No plan, error, log, event, checkpoint or printed line
    contains a token.
    """
    pytest.importorskip("pyspark.sql", reason="this test needs the extra spark")
    own = tmp_path / "tokens"
    own.mkdir()
    with testing.running_cluster(secure=True) as secured, Admin(**secured.arguments) as admin:
        for topic in ("flights", "other"):
            admin.create_topic(topic, partitions=2)
        tokens = {name: admin.create_token(f"user:{name}").token for name in ("ann", "driver", "executor")}
        for name, token in tokens.items():
            (own / name).write_text(token)
        for kind in ("topic", "group", "producer"):
            admin.create_acl("user:ann", ["all"], kind, "flights*")
        # The driver plans, and only executors touch records.
        admin.create_acl("user:driver", ["describe"], "topic", "flights")
        admin.create_acl("user:executor", ["read", "write"], "topic", "flights")
        settings = {
            "bootstrap": secured.bootstrap,
            "ca_file": str(secured.ca_file),
            "admin_file": str(secured.token_file),
            "executor_file": str(own / "executor"),
            "token_file": str(own / "ann"),
            "token": tokens["ann"],
            "folder": str(tmp_path),
        }
        environment = {
            **os.environ,
            **QUICK_WORKERS,
            **quick_java(),
            "FAIRLEAD_TOKEN_FILE": str(own / "driver"),
        }
        environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
        done = subprocess.run(
            [sys.executable, PROGRAM],
            input=json.dumps(settings), capture_output=True, text=True, timeout=500, check=False, env=environment,
            cwd=tmp_path,
        )  # fmt: skip

        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        tokens["following"] = (own / "ann").read_text()
    kept = b"".join(
        file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.parent != own
    )
    assert b"SparkListenerSQLExecutionStart" in kept
    assert tokens["following"] != tokens["ann"]
    for name, token in tokens.items():
        assert token not in done.stdout, name
        assert token not in done.stderr, name
        assert token.encode() not in kept, name
