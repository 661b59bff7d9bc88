"""Mutates the inputs of the native module of the Kafka listener, and checks that each is refused or translated.

`python native_mutations.py --mutants 100000 --seed 1 --sanitize` compiles the module with the address and
undefined-behaviour sanitizers, and runs the mutations in a process that loads this module. The program prints a JSON
report and exits with 1 when an accepted input does not survive a round trip; a sanitizer ends the process with a
message on stderr.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SOURCE: Final = Path(__file__).resolve().parents[2] / "kafka-records/src/fairlead_kafka_records.pyx"
MODULE: Final = "fairlead_kafka_records"
SANITIZERS: Final = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
)
BASE_MS: Final = 1_700_000_000_000
BASES_MS: Final = (*[BASE_MS] * 20, 2**63 - 1, -(2**63), -1)
BOUNDS: Final = "length < 0 or length > end - cursor.at"
"""Check of the module that `--without-bounds` leaves out; the sanitizer must notice its absence."""
NUMBERS: Final = (
    b"\x00",
    b"\x01",
    b"\x02",
    b"\x7f",
    b"\x80\x01",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 10,
)
"""Encoded numbers of records: small numbers, the largest and smallest 32-bit numbers, and a number that never ends."""
PLACES: Final = (0, 1, 3, 8, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -(2**63))


def compiled(folder: Path, *, bounds: bool) -> Path:
    """Compile the module with the sanitizers into a folder, and return the library."""
    source, code, library = (folder / f"{MODULE}.{end}" for end in ("pyx", "c", "so"))
    text = SOURCE.read_text()
    assert BOUNDS in text
    source.write_text(text if bounds else text.replace(BOUNDS, "length < 0"))
    subprocess.run(
        [sys.executable, "-m", "cython", "-3", str(source), "-o", str(code)], check=True, stdout=sys.stderr
    )
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-w",
        *SANITIZERS,
        f"-I{sysconfig.get_path('include')}",
        str(code),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    return library


def loaded(library: Path | None) -> ModuleType:
    """Return the module in a library, or the installed module."""
    if library is None:
        return importlib.import_module(MODULE)
    spec = importlib.util.spec_from_file_location(MODULE, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sanitized(arguments: list[str], *, bounds: bool) -> int:
    """Run this program again with a module that is compiled with the sanitizers."""
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(Path(folder), bounds=bounds)
        found = subprocess.run(
            ["cc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
        )
        variables = {
            **os.environ,
            "LD_PRELOAD": found.stdout.strip(),
            # The interpreter does not free its memory at exit, and its own allocator would hide where buffers end.
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, __file__, *arguments, "--library", str(library)]
        return subprocess.run(command, env=variables, check=False).returncode


def number(value: int) -> bytes:
    """Return a zigzag number in base 128."""
    rest = value << 1 if value >= 0 else -(value << 1) - 1
    packed = bytearray()
    while rest >= 0x80:
        packed.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*packed, rest))


def field(chance: random.Random) -> bytes:
    """Return a key, a value or a header value (null, empty or some bytes), preceded by its length."""
    length = chance.choice((-1, 0, 1, 3, 70, 200))
    return number(length) + chance.randbytes(max(length, 0))


def records(chance: random.Random) -> tuple[bytes, int]:
    """Return the records of a batch, and their number."""
    count = chance.choice((1, 2, 5, 9, 64))
    packed = b""
    for at in range(count):
        headers = chance.choice((0, 0, 0, 1, 3))
        parts = [
            b"\0",
            number(chance.randrange(-5000, 5000)),
            number(at),
            field(chance),
            field(chance),
            number(headers),
        ]
        parts += [number(2) + b"ab" + field(chance) for _ in range(headers)]
        record = b"".join(parts)
        packed += number(len(record)) + record
    return packed, count


def mutated(data: bytes, chance: random.Random, words: tuple[bytes, ...]) -> bytes:
    """Change, insert or remove bytes at one to three places."""
    mutant = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        at = chance.randrange(len(mutant) + 1)
        match chance.randrange(4):
            case 0 if at < len(mutant):
                mutant[at] ^= 1 << chance.randrange(8)
            case 1:
                word = chance.choice(words)
                mutant[at : at + len(word)] = word
            case 2:
                mutant[at:at] = chance.choice(words)
            case _:
                del mutant[at : at + chance.choice((1, 2, 8))]
    return bytes(mutant)


def read_back(module: ModuleType, packed: bytearray, places: tuple[int, ...], rows: int) -> bool:
    """Return whether decoded columns are the same after one more translation to records and back."""
    headers = places[25] // 4 - 1
    body, base_ms = module.encode(packed, places, rows, headers, 0)
    again, found, *_ = module.decode(body, rows, base_ms, 7, 0)
    return bool(again == packed and found == places)


def run(module: ModuleType, mutants: int, seed: int) -> dict[str, Any]:
    """Pass mutants to both functions of the module, and return the report."""
    chance = random.Random(seed)
    outcomes, slowest, broken = Counter[str](), 0.0, None
    data, count = records(chance)
    for each in range(mutants):
        if each % 20 == 0:
            data, count = records(chance)
        mutant = mutated(data, chance, NUMBERS)
        rows = count + chance.choice((0, 0, 0, 0, 1, -1, 2**31))
        base_ms = chance.choice(BASES_MS)
        begun = time.perf_counter()
        try:
            packed, places, *_ = module.decode(mutant, rows, base_ms, 7, 0)
        except (ValueError, OverflowError) as error:
            outcomes[f"decode: {type(error).__name__}"] += 1
        else:
            outcomes["decode: translated"] += 1
            # The second translation has no records without a timestamp.
            if base_ms == BASE_MS and not read_back(module, packed, places, rows):
                broken = broken or {"mutant": mutant.hex(), "rows": rows}
            outcomes[f"encode: {_encoded(module, packed, places, rows, chance)}"] += 1
        slowest = max(slowest, time.perf_counter() - begun)
    return {
        "mutants": mutants,
        "seed": seed,
        "outcomes": dict(outcomes),
        "slowest_us": round(slowest * 1e6),
        "broken": broken,
    }


def _encoded(
    module: ModuleType, packed: bytearray, places: tuple[int, ...], rows: int, chance: random.Random
) -> str:
    """Pass mutated columns to `encode`, and return the outcome."""
    body = mutated(bytes(packed), chance, (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4), b"\x05\0\0\0"))
    changed = list(places)
    if chance.randrange(2):
        changed[chance.randrange(len(changed))] = chance.choice(PLACES)
    if not chance.randrange(4):
        changed += [places[14], 4 * rows]  # a column of offset deltas in the bytes of the timestamps
    headers = places[25] // 4 - 1 + chance.choice((0, 0, 0, 1, -1))
    try:
        module.encode(
            body, tuple(changed), rows + chance.choice((0, 0, 0, 1, -1)), headers, chance.choice((0, 61))
        )
    except (ValueError, OverflowError) as error:
        return type(error).__name__
    return "translated"


def main(arguments: list[str]) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitize", action="store_true", help="compile the module with sanitizers")
    parser.add_argument("--without-bounds", action="store_true", help="leave out one check of the module")
    parser.add_argument("--library", type=Path, help="module to test, instead of the installed one")
    given = parser.parse_args(arguments)
    if given.sanitize:
        further = ["--mutants", str(given.mutants), "--seed", str(given.seed)]
        return sanitized(further, bounds=not given.without_bounds)
    report = run(loaded(given.library), given.mutants, given.seed)
    sys.stdout.write(json.dumps({**report, "sanitized": given.library is not None}) + "\n")
    return 1 if report["broken"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
