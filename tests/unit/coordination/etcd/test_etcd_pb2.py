from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import checkout

PROTO = Path("broker/fairlead_broker/coordination/etcd/etcd.proto")


@pytest.mark.parametrize("name", ["etcd_pb2.py", "etcd_pb2.pyi"])
def test_the_messages_are_those_of_the_proto_file(tmp_path: Path, name: str) -> None:
    """The generated messages equal the output of protoc for the proto file, with the command in that file."""
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", "broker"),
        *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(PROTO)),
    ]
    subprocess.run(command, cwd=checkout.ROOT, check=True, capture_output=True)
    made = tmp_path / PROTO.relative_to("broker").with_name(name)

    assert made.read_text() == (checkout.ROOT / PROTO.with_name(name)).read_text()
