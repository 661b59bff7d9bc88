"""Source and sinks of a real Spark against brokers with TLS that refuse what no ACL allows (rule C7)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead import testing
from fairlead.blocking import Admin

PROGRAM = Path(__file__).parent / "secured_program.py"


@pytest.mark.scenario
def test_spark_names_its_caller_and_shows_no_token(tmp_path: Path) -> None:
    """Batch, stream and write work by file and by token; no plan, error, event log or printed line has the token."""
    pytest.importorskip("pyspark.sql", reason="this test needs the extra spark")
    with testing.running_cluster(secure=True) as secured, Admin(**secured.arguments) as admin:
        admin.create_topic("flights", partitions=2)
        token = admin.create_token("user:ann").token
        for kind in ("topic", "group", "producer"):
            admin.create_acl("user:ann", ["all"], kind, "flights*")
        (tmp_path / "ann.token").write_text(token)
        arguments = [secured.bootstrap, str(secured.ca_file), str(tmp_path / "ann.token"), str(tmp_path)]
        done = subprocess.run(
            [sys.executable, PROGRAM, *arguments],
            capture_output=True, text=True, timeout=500, check=False, env={**os.environ, "TOKEN": token},
        )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    logged = "".join(file.read_text() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert "SparkListenerSQLExecutionStart" in logged
    for text in (done.stdout, done.stderr, logged):
        assert token not in text
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or token.encode() not in file.read_bytes()
