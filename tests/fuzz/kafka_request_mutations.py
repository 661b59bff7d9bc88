"""Mutates requests of every Kafka API and version that is served, and decodes them as the listener does.

`python kafka_request_mutations.py --mutants 100000 --seed 1` prints a JSON report with the slowest mutant. The process
has a memory limit, so that the process fails if decoding trusts a false length. The program exits with 1 when decoding
raises anything but the error for which a connection is closed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "plugins"))

from fairlead_broker.kafka.protocol.apis import APIS, Api
from fairlead_broker.kafka.protocol.messages import UndecodableError, decode_request
from kafka_inputs import SERVED, Requests, mutated

MEMORY_BYTES_MAX: Final = 512 << 20
"""Memory that decoding may use in addition to what the process has after loading the messages."""


def run(mutants: int, seed: int) -> dict[str, Any]:
    """Decode the mutants, and return the report."""
    chance = random.Random(seed)
    requests = Requests(chance)
    for api, version in SERVED:  # the library compiles its readers when they are first used
        _decoded(api, version, requests.body(api, version))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (address_space + MEMORY_BYTES_MAX,) * 2)
    outcomes, slowest, slowest_api, broken = Counter[str](), 0.0, "", None
    body = b""
    for each in range(mutants):
        api, version = SERVED[each // 10 % len(SERVED)]
        if each % 10 == 0:
            body = requests.body(api, version)
        mutant = mutated(body, chance)
        begun = time.perf_counter()
        try:
            outcomes[_decoded(api, version, mutant)] += 1
        except (Exception, MemoryError) as error:  # noqa: BLE001 - any other error is what is looked for
            broken = broken or {
                "api": api.name,
                "version": version,
                "error": repr(error),
                "mutant": mutant.hex(),
            }
        took = time.perf_counter() - begun
        if took > slowest:
            slowest, slowest_api = took, f"{api.name} {version}"
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - used
    return {
        "mutants": mutants,
        "seed": seed,
        "apis": len(APIS),
        "versions": len(SERVED),
        "outcomes": dict(outcomes),
        "slowest_us": round(slowest * 1e6),
        "slowest_api": slowest_api,
        "further_mib": more >> 20,
        "broken": broken,
    }


def _decoded(api: Api, version: int, body: bytes) -> str:
    try:
        decode_request(api, version, memoryview(body))
    except UndecodableError:
        return "refused"
    return "decoded"


def main(arguments: list[str]) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    report = run(given.mutants, given.seed)
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
