"""Short mutation fuzzes of Kafka's requests and of the native module.

`make prove PROVE="kafka-fuzz kafka-wire-fuzz"` runs millions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SLOWEST_US_MAX = 2_000_000


def mutate(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run mutations in a separate process, which may crash."""
    command = [sys.executable, str(FOLDER / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


def test_mutated_requests_are_decoded_or_refused() -> None:
    """Mutated requests of every API and version are decoded or refused, with little memory and time."""
    finished = mutate("kafka_request_mutations.py", "--mutants", "20000")
    report = json.loads(finished.stdout)

    assert (finished.returncode, report["broken"]) == (0, None)
    assert min(report["outcomes"][each] for each in ("decoded", "refused")) > report["mutants"] / 5
    assert report["slowest_us"] < SLOWEST_US_MAX


def test_mutated_records_are_translated_or_refused() -> None:
    """Mutated records and columns are translated or refused, and all translated data survives a round trip."""
    finished = mutate("native_mutations.py", "--mutants", "20000")
    report = json.loads(finished.stdout)

    assert (finished.returncode, report["broken"]) == (0, None)
    assert min(report["outcomes"][f"{each}: translated"] for each in ("decode", "encode")) > 0


@pytest.mark.slow
def test_the_sanitizer_notices_a_missing_check() -> None:
    """The address sanitizer finds no fault in the native module, but finds one if a check of the module is left out."""
    sound = mutate("native_mutations.py", "--mutants", "5000", "--sanitize")
    broken = mutate("native_mutations.py", "--mutants", "5000", "--sanitize", "--without-bounds")

    assert (sound.returncode, sound.stderr) == (0, "")
    assert broken.returncode != 0
    assert "AddressSanitizer" in broken.stderr


@pytest.mark.slow
def test_mutated_requests_end_no_broker() -> None:
    """A broker process answers each mutated request that can be decoded, and stores all valid records."""
    finished = mutate("kafka_wire_mutations.py", "--inputs", "2000")
    report = json.loads(finished.stdout)

    assert (finished.returncode, report["failures"], report["broker_exits"]) == (0, [], 0)
    assert len(report["inputs_by_kind"]) == 3
    # Enough requests are decoded and accepted to test the code behind the checks of a request.
    assert report["answers_by_error"]["NONE"] > 300
