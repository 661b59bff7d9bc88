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
import struct
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

sys.path.append(str(Path(__file__).resolve().parents[1] / "plugins"))

from fairlead_broker.kafka.protocol.apis import APIS, Api
from fairlead_broker.kafka.protocol.messages import MESSAGES, UndecodableError, decode_request
from kafka_messages import INTEGERS, Values, fields_of, message_of, versions

MEMORY_BYTES_MAX: Final = 512 << 20
"""Memory that decoding may use in addition to what the process has after loading the messages."""
WORDS: Final = (
    *(struct.pack(">i", each) for each in (-1, -2, 0, 1, 2**31 - 1, -(2**31))),
    *(struct.pack(">h", each) for each in (-1, 0, 2**15 - 1)),
    b"\x00",
    b"\x01",
    b"\x02",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 40,
    bytes(64),
    b"\x01" * 200,
)


def values(structure: Mapping[str, Any], version: int, chance: random.Random) -> Values:
    """Return values for all fields of a version of a structure."""
    return {field["name"]: _value(field, version, chance) for field in fields_of(structure, version)}


def _value(field: Mapping[str, Any], version: int, chance: random.Random) -> Any:
    kind: str = field["type"]
    if version in versions(field.get("nullableVersions")) and not chance.randrange(4):
        return None
    if kind.startswith("[]"):
        inner = {**field, "type": kind[2:], "nullableVersions": "none"}
        return [_value(inner, version, chance) for _ in range(chance.choice((0, 1, 1, 2, 5)))]
    if "fields" in field:
        return values(field, version, chance)
    if kind in INTEGERS:
        return chance.choice((0, 1, -1, 2 ** (INTEGERS[kind] - 1) - 1))
    return {
        "bool": True,
        "float64": 0.5,
        "uint16": 7,
        "uuid": UUID(int=chance.getrandbits(128)),
        "string": "name" * chance.choice((0, 1, 9)),
        "bytes": chance.randbytes(9),
        "records": chance.randbytes(90),
    }[kind]


def mutated(body: bytes, chance: random.Random) -> bytes:
    """Change, insert, repeat or remove bytes at one to four places."""
    mutant = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, word = chance.randrange(len(mutant) + 1), chance.choice(WORDS)
        match chance.randrange(5):
            case 0 if at < len(mutant):
                mutant[at] ^= 1 << chance.randrange(8)
            case 1:
                mutant[at : at + len(word)] = word
            case 2:
                mutant[at:at] = word
            case 3:
                mutant[at:at] = mutant[at : at + chance.choice((4, 40))] * chance.choice((1, 3, 300))
            case _:
                del mutant[at : at + chance.choice((1, 4, 9))]
    return bytes(mutant)


def run(mutants: int, seed: int) -> dict[str, Any]:
    """Decode the mutants, and return the report."""
    chance = random.Random(seed)
    served = [(api, version) for api in APIS.values() for version in range(api.first, api.last + 1)]
    for api, version in served:  # the library compiles its readers when they are first used
        _decoded(api, version, _request(api, version, chance))
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    address_space = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (address_space + MEMORY_BYTES_MAX,) * 2)
    outcomes, slowest, slowest_api, broken = Counter[str](), 0.0, "", None
    body = b""
    for each in range(mutants):
        api, version = served[each // 10 % len(served)]
        if each % 10 == 0:
            body = _request(api, version, chance)
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
        "versions": len(served),
        "outcomes": dict(outcomes),
        "slowest_us": round(slowest * 1e6),
        "slowest_api": slowest_api,
        "further_mib": more >> 20,
        "broken": broken,
    }


def _request(api: Api, version: int, chance: random.Random) -> bytes:
    kind = MESSAGES[api.key][0]
    return bytes(message_of(kind, version, values(kind.json, version, chance)).encode(version=version))


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
