"""Real brokers and etcd under load and faults, and a history that the checker judges.

python chaos.py --seconds 300 --faults kill-leader,pause-leader --seed 7

Without `--faults`, all faults are injected, in random order. In the first half of the time, producers are idempotent
and retry. In the second half of the time, in a second history, every request is sent once. The program prints a JSON
report on each history and exits with 1 unless both histories are valid and the cluster recovered. `--keep FOLDER` keeps
the histories and every log in the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

sys.path.extend(
    str(Path(__file__).parents[1] / folder)
    for folder in ("plugins", "plugins/programs", "faults", "checker", "etcd")
)

from chaos_faults import ALONE, FAULTS, inject
from chaos_run import Producers, as_document, chaos_run

ACKNOWLEDGED_A_SECOND_MIN = 5.0
"""Minimum number of acknowledged sends per second; a run with fewer sends proves nothing, because the faults occur
without load."""


async def run(
    folder: Path, arguments: argparse.Namespace, producers: Producers, seconds: float
) -> dict[str, Any]:
    """Run once and return the report."""
    rng = random.Random(arguments.seed)
    known = FAULTS if arguments.etcd_members else ALONE
    names = arguments.faults.split(",") if arguments.faults else list(known)
    members = arguments.etcd_members
    async with chaos_run(folder, arguments.brokers, producers=producers, etcd_members=members) as this:
        if len(this.cluster.nodes) > 2:
            await this.create_replicated_topic(arguments.mode)
        else:
            await this.create_topic()
        this.usual_load()
        await this.wait_for_acknowledgements(50)
        await inject(this, rng, names, seconds)
        report = as_document(this, await this.finish())
    enough = report["acknowledged"] >= ACKNOWLEDGED_A_SECOND_MIN * seconds
    return {"seed": arguments.seed, "seconds": seconds, "met_load": enough, **report}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--faults", default="", help=f"some of {', '.join(FAULTS)}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument(
        "--mode", choices=("isr", "quorum"), default="isr", help="replication.mode of the topic"
    )
    parser.add_argument("--etcd-members", type=int, default=1, help="0: one broker, without etcd")
    parser.add_argument(
        "--producers", choices=[each.value for each in Producers], help="only these; else one after the other"
    )
    parser.add_argument("--scenarios", action="store_true", help="every named scenario instead, by pytest")
    parser.add_argument("--keep", type=Path, help="where to leave everything")
    arguments = parser.parse_args()
    if arguments.scenarios:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "scenario",
            str(Path(__file__).parent),
            "-o",
            "time_budgets=",
        ]
        return subprocess.run([*command, "--timeout", "300"], check=False).returncode
    unknown = {name for name in arguments.faults.split(",") if name} - set(FAULTS)
    if unknown:
        parser.error(f"no fault is known as {', '.join(sorted(unknown))}; known are {', '.join(FAULTS)}")
    # Clients warn about every broker that does not answer, which is expected in a chaos run.
    logging.disable(logging.WARNING)
    # The report is all of the output.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlead-")))
        for each in Producers:
            (folder / each.value).mkdir(parents=True, exist_ok=True)
        chosen = [Producers(arguments.producers)] if arguments.producers else list(Producers)
        reports = {
            each.value: asyncio.run(
                run(folder / each.value, arguments, each, arguments.seconds / len(chosen))
            )
            for each in chosen
        }
    sys.stdout.write(json.dumps(reports, indent=1) + "\n")
    good = all(
        each["verdict"] == "valid" and not each["unsettled"] and each["met_load"] for each in reports.values()
    )
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
