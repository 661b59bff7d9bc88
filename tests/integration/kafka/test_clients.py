"""Python clients against one broker: programs that `make prove PROVE=kafka-clients` runs against a cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from broker_kit import Calls
from kafka_kit import StartBroker, kafka_address

PROGRAMS = Path(__file__).parents[2] / "kafka_clients/python"
RECORDS = 10
"""Number of records that a client writes with each codec."""


@pytest.mark.parametrize("program", ["librdkafka", "kafka_python", "aiokafka"])
async def test_a_client_in_python_produces_and_consumes(start: StartBroker, program: str) -> None:
    """Each client reads, as a member of a group, exactly what it wrote, and the group's offsets are committed."""
    running = await start()
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        await calls.create("orders", partitions=2)

    client = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(PROGRAMS / f"{program}_program.py"), kafka_address(running), "orders", "billing", str(RECORDS)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await client.communicate()

    assert client.returncode == 0, errors.decode()
