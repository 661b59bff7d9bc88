"""A program that runs an etcd member and a broker as pods do, in an IPv6-only network, and reads a record.

`test_ipv6.py` runs the program in its own network namespace; `argv[1]` is an empty folder, and `argv[2]` is the only
address of the machine. The namespace has its own 127.0.0.1, like a pod; programs outside the namespace cannot reach
this address.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from broker_process import BrokerProcess
from etcd_build import etcd_binaries
from fairlead import Admin, Consumer, Producer
from fairlead_operator.naming import DATA_PORT, ETCD_CLIENT_PORT, ETCD_PEER_PORT
from render_kit import cluster_of, container_of, drawn, variables_of

SECONDS = 60.0


def etcd_command(folder: Path, host: str, arguments: list[str]) -> list[str]:
    """Return the command of a pod's etcd member, with the addresses of this network instead of the pod's."""
    peer = f"http://[{host}]:{ETCD_PEER_PORT}"
    return [
        str(etcd_binaries().etcd),
        *(each for each in arguments if each.startswith("--listen-")),
        f"--advertise-client-urls=http://[{host}]:{ETCD_CLIENT_PORT}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--data-dir={folder / 'etcd'}",
    ]


def broker_variables(host: str, drawn_for_pods: dict[str, object]) -> dict[str, str]:
    """Return the settings of a pod's broker, with its addresses in this network."""
    kept = ("_LISTEN", "_SECURITY")
    listening = {name: str(value) for name, value in drawn_for_pods.items() if name.endswith(kept)}
    return {
        **listening,
        "POD_IP": host,
        "FAIRLEAD_ID": "0",
        "FAIRLEAD_ADVERTISE": f"{{ip}}:{DATA_PORT}",
        "FAIRLEAD_PEER_ADVERTISE": f"{{ip}}:{DATA_PORT + 1}",
        "FAIRLEAD_ETCD": f"http://[{host}]:{ETCD_CLIENT_PORT}",
    }


async def stored_and_read(url: str) -> str:
    """Write a record to the broker, read it, and return its value."""
    async with Admin(url) as admin, Producer(url) as producer:
        await admin.create_topic("orders", partitions=1)
        await producer.send("orders", b"over IPv6")
        await producer.flush()
        async with Consumer(url, group="readers", topics=["orders"]) as consumer:
            async for batch in consumer:
                return str(batch.values[0], "utf-8")
    raise AssertionError


def main() -> None:
    """Start etcd and the broker, write and read a record, and prepare the stop of the broker as its pod does."""
    folder, host = Path(sys.argv[1]), sys.argv[2]
    pods = drawn(cluster_of())
    member = container_of(pods["StatefulSet/main-etcd"], "etcd")
    variables = broker_variables(host, variables_of(pods["StatefulSet/main-a"]))
    listeners = (
        variables["FAIRLEAD_LISTEN"],
        variables["FAIRLEAD_PEER_LISTEN"],
        variables["FAIRLEAD_OPS_LISTEN"],
    )
    broker = BrokerProcess(folder / "broker", variables, listeners=listeners)
    with ExitStack() as stack, (folder / "etcd.log").open("wb") as log:
        etcd = subprocess.Popen(etcd_command(folder, host, member["args"]), stdout=log, stderr=log)
        stack.callback(etcd.wait)
        stack.callback(etcd.kill)
        broker.start(SECONDS)
        stack.callback(broker.kill)
        read = asyncio.run(asyncio.wait_for(stored_and_read(f"http://[{host}]:{DATA_PORT}"), SECONDS))
        program = Path(sys.executable).with_name("fairlead")
        hook = [program, "broker", "prepare-stop", "--seconds", "20"]
        told = subprocess.run(hook, env=os.environ | variables, stderr=subprocess.PIPE, text=True, check=True)
        sys.stdout.write(f"{read}\n{told.stderr}")


if __name__ == "__main__":
    main()
