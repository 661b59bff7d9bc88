"""Long proofs: `make prove` runs all proofs, and `make prove PROVE="kills power-cuts"` runs the named proofs.

Every part is a program that can also be run alone and prints a JSON report. This program runs each part with its full
counts and writes the report to docs/proof/<part>.json. `--share 0.01` reduces every count to a hundredth, for a trial
run. `--seconds 3600` ends the parts `broker-kills`, `transaction-kills`, `wire-fuzz` and `kafka-wire-fuzz` early, and
their records contain the requested and the reached counts. `--add` runs only the rest of these counts, and adds the
result to the records of the earlier runs. After a part has failed, the other parts still run.
The module is a single file because all parts share the options and the counts.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from proof_record import read_counts, write_record
from proof_sums import continued
from proof_tests import prove_tests, run_program, run_tests

GIB: Final = 1 << 30
MUTANTS_A_RUN: Final = 50_000
SCENARIO: Final = "pytest.mark.scenario"
SCENARIO_MARK: Final = "scenario"
SEARCHES_A_RUN: Final = 125_000
"""Number of cases that one process tries, because starting a process takes as long as 10,000 cases."""
SECONDS_VARIABLE: Final = "FAIRLEAD_PROOF_SECONDS"
"""Environment variable with the time limit of a part, which the option `--seconds` sets."""
ADD_VARIABLE: Final = "FAIRLEAD_PROOF_ADD"
"""Environment variable that is set when the option `--add` is given."""
MUTATIONS: Final = "tests/fuzz/batch_mutations.py"
REQUEST_MUTATIONS: Final = "tests/fuzz/request_mutations.py"
KAFKA_REQUEST_MUTATIONS: Final = "tests/fuzz/kafka_request_mutations.py"
NATIVE_MUTATIONS: Final = "tests/fuzz/native_mutations.py"
WIRE_MUTATIONS: Final = "tests/fuzz/wire_mutations.py"
KAFKA_WIRE_MUTATIONS: Final = "tests/fuzz/kafka_wire_mutations.py"
ACCESS_SEARCHES: Final = "tests/security/access_searches.py"
EARLIER_RELEASE: Final = "tests/integration/cluster/test_earlier_release.py"
COMPACTION: Final = {
    "tests/integration/retention/test_compaction.py": SCENARIO_MARK,
    "tests/integration/retention/test_compacted_transactions.py": "",
    "tests/integration/cluster/test_compaction.py": SCENARIO_MARK,
    "tests/chaos/partitions/test_compaction.py": SCENARIO_MARK,
    "tests/unit/log/cleaning": SCENARIO_MARK,
    "tests/unit/compaction/test_removal_model.py": "",
    "tests/simulation/test_compacted.py": "scenario or slow",
}
"""Tests of compacted topics, and the marks of the tests that run; without a mark, all tests run."""

Outcome = tuple[bool, dict[str, Any]]
"""Result of a part of the proof: whether the part passed, and the report."""


def power_cuts(share: float) -> Outcome:
    """Run the log through 2,000 simulated power cuts; three kinds of faulty disk must be detected."""
    seed = _seed()
    cycles = _count(2000, share)
    program = "tests/faults/power_cuts.py"
    code, report = run_program(program, "--cycles", str(cycles), "--seed", str(seed))
    found = {}
    for switch in ("file_sync", "folder_sync", "rename_order"):
        failed, broken = run_program(
            program, "--cycles", str(cycles), "--seed", str(seed), "--without", switch
        )
        found[switch] = {"noticed": failed == 1, "after_cuts": broken["losses"]["cuts"]}
    passed = code == 0 and all(each["noticed"] for each in found.values())
    return passed, {**report, "disks_that_break_a_promise": found}


def cleaning_cuts(share: float) -> Outcome:
    """Interrupt the cleaning of 40 random histories at every change of the disk, by losses of power and by kills.

    The histories contain all codecs, several leader epochs and transactions. Three consecutive histories have every
    size of windows, key maps, segments and sets of keys, and nine have every pair of the first three. Two kinds of
    faulty disk must be detected.
    """
    seed = _seed()
    program = "tests/faults/cleaning_cuts.py"
    histories = str(_count(40, share))
    code, report = run_program(program, "--histories", histories, "--seed", str(seed))
    found = {}
    for switch in ("file_sync", "folder_sync"):
        failed, broken = run_program(
            program, "--histories", histories, "--seed", str(seed), "--without", switch
        )
        found[switch] = {"noticed": failed == 1, "after_cuts": broken["losses"]["cuts"]}
    passed = code == 0 and all(each["noticed"] for each in found.values())
    return passed, {**report, "disks_that_break_a_promise": found}


def kills(share: float) -> Outcome:
    """Run 100 kills of a broker with a log of 1 GiB, then 10 kills with a log of 10 GiB."""
    passed, reports = True, {}
    for name, count, nbytes in (("1 GiB", 100, GIB), ("10 GiB", 10, 10 * GIB)):
        arguments = ("--kills", str(_count(count, share)), "--ballast-bytes", str(_count(nbytes, share)))
        code, reports[name] = run_program(
            "tests/faults/killed_brokers.py", *arguments, "--seed", str(_seed())
        )
        passed &= code == 0
    return passed, reports


def bit_flips(share: float) -> Outcome:
    """Test 1,000 cases of flipped bits and truncated files."""
    code, report = run_program(
        "tests/faults/bit_flips.py", "--trials", str(_count(1000, share)), "--seed", str(_seed())
    )
    return code == 0, report


def batch_fuzz(share: float) -> Outcome:
    """Send 10 million mutated batches through the leader's validation, with a different seed for each run."""
    mutants, first = _count(10_000_000, share), _seed()
    runs = -(-mutants // MUTANTS_A_RUN)
    done, refused, broken = 0, Counter[str](), []
    sealed = 0.0

    def run(number: int) -> tuple[int, dict[str, Any]]:
        arguments = ("--mutants", str(min(MUTANTS_A_RUN, mutants)), "--seed", str(first + number))
        return run_program(MUTATIONS, *arguments)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for code, report in pool.map(run, range(runs)):
            done += report.get("mutants", 0)
            sealed += report.get("sealed", 0.0) * report.get("mutants", 0)
            refused.update(report.get("refused", {}))
            if code:
                broken.append({"seed": report.get("seed"), "broken": report.get("broken", report)})
            _progress(f"{done:,} of {mutants:,} mutants")
    counts = {
        "mutants": done,
        "seeds": [first, first + runs - 1],
        "share_with_true_checksums": round(sealed / max(done, 1), 4),
        "share_refused_by_check": {
            name: round(each / max(done, 1), 6) for name, each in refused.most_common()
        },
        "broken": broken,
    }
    return not broken and done >= mutants, counts


def request_fuzz(share: float) -> Outcome:
    """Send a million mutated requests to the application of a broker's data listener."""
    mutants, first = _count(1_000_000, share), _seed()
    runs = -(-mutants // MUTANTS_A_RUN)
    statuses, broken = Counter[str](), []

    def run(number: int) -> tuple[int, dict[str, Any]]:
        arguments = ("--mutants", str(min(MUTANTS_A_RUN, mutants)), "--seed", str(first + number))
        return run_program(REQUEST_MUTATIONS, *arguments)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for code, report in pool.map(run, range(runs)):
            statuses.update(report.get("statuses", {}))
            if code:
                broken.append({"seed": report.get("seed"), "broken": report.get("broken", report)})
            _progress(f"{statuses.total():,} of {mutants:,} requests")
    done = statuses.total()
    counts = {
        "requests": done,
        "seeds": [first, first + runs - 1],
        "answers_by_status": dict(sorted(statuses.items())),
    }
    return not broken and done >= mutants, {**counts, "broken": broken}


def access_searches(share: float) -> Outcome:
    """Evaluate a million random rule sets, and try a million each of mutated ACLs, API and signed tokens, and headers.

    A mutated certificate takes as long as ten tokens, so the part tries a hundred thousand.
    """
    first = _seed()
    full = dict.fromkeys(("rule-sets", "acl-texts", "api-tokens", "signed-tokens", "headers"), 1_000_000)
    wanted = {search: _count(count, share) for search, count in (full | {"certificates": 100_000}).items()}
    jobs = [
        (search, min(SEARCHES_A_RUN, count - done), first + done)
        for search, count in wanted.items()
        for done in range(0, count, SEARCHES_A_RUN)
    ]
    done, outcomes, found = Counter[str](), dict[str, Counter[str]](), []

    def run(job: tuple[str, int, int]) -> tuple[str, int, dict[str, Any]]:
        search, number, seed = job
        return search, *run_program(ACCESS_SEARCHES, search, "--count", str(number), "--seed", str(seed))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for search, code, report in pool.map(run, jobs):
            if code:
                found.append({"search": search, **report})
            else:
                done[search] += report["count"]
            outcomes.setdefault(search, Counter()).update(report.get("outcomes", {}))
            _progress(f"{done.total():,} of {sum(wanted.values()):,}")
    counts = {"done": dict(done), "first_seed": first, "outcomes": {k: dict(v) for k, v in outcomes.items()}}
    return not found, {**counts, "found": found}


def wire_fuzz(share: float) -> Outcome:
    """Send 5 million bad inputs over HTTP to an open broker, and as many without a token to a closed broker."""
    passed, series, wanted = True, _earlier("wire-fuzz"), _count(5_000_000, share)
    for name, further in (("open", ()), ("closed", ("--stranger",))):

        def run(inputs: int, options: tuple[str, ...] = further) -> tuple[int, dict[str, Any]]:
            arguments = ("--inputs", str(inputs), "--seed", str(_seed()), *_seconds(), *options)
            return run_program(WIRE_MUTATIONS, *arguments)

        good, series[name] = continued(series.get(name), "inputs", wanted, run)
        passed &= good
    return passed, series


def kafka_fuzz(share: float) -> Outcome:
    """Decode 5 million mutated Kafka requests; pass 5 million to the native module under the address sanitizer."""
    passed, reports, mutants = True, {}, str(_count(5_000_000, share))
    programs = {"requests": (KAFKA_REQUEST_MUTATIONS,), "native module": (NATIVE_MUTATIONS, "--sanitize")}
    for name, (program, *further) in programs.items():
        code, reports[name] = run_program(program, "--mutants", mutants, "--seed", str(_seed()), *further)
        passed &= code == 0
    return passed, reports


def kafka_wire_fuzz(share: float) -> Outcome:
    """Send 5 million mutated Kafka requests of all APIs and versions to a broker process."""

    def run(inputs: int) -> tuple[int, dict[str, Any]]:
        return run_program(KAFKA_WIRE_MUTATIONS, "--inputs", str(inputs), "--seed", str(_seed()), *_seconds())

    return continued(_earlier("kafka-wire-fuzz") or None, "inputs", _count(5_000_000, share), run)


def kafka_suites(share: float) -> Outcome:
    """Run the integration tests of kafka-python and franz-go against a broker; only tests with a reason may fail."""
    del share
    code, report = run_program("tests/kafka_clients/client_suites.py")
    return code == 0, report


def kafka_clients(share: float) -> Outcome:
    """Run clients of Kafka's protocol, Kafka's own tools and programs that use the protocol against three brokers."""
    code, report = run_program("tests/kafka_clients/kafka_clients.py", "--count", str(_count(100, share)))
    return code == 0, report


def kafka_failures(share: float) -> Outcome:
    """Restart brokers, and kill leaders 10 times, under producers of librdkafka and of Kafka's Java client."""
    arguments = ("--rounds", str(_count(10, share)))
    code, report = run_program("tests/kafka_clients/broker_failures.py", *arguments)
    return code == 0, report


def kafka_move(share: float) -> Outcome:
    """Move a producer and a group from Apache Kafka to three brokers with MirrorMaker 2, after 60 seconds of load."""
    code, report = run_program("tests/kafka_clients/moving_over.py", "--seconds", str(_count(60, share)))
    return code == 0, report


def kafka_copies(share: float) -> Outcome:
    """Copy a topic from Apache Kafka with the job from_kafka, killed once; compare it, and translate offsets."""
    del share
    return _tests("-m", "scenario", "--timeout", "1800", "tests/spark/pipelines/test_from_kafka.py")


def broker_kills(share: float) -> Outcome:
    """Kill brokers of clusters under load 10,000 times: one or more brokers each time, up to all at once."""

    def run(kills: int) -> tuple[int, dict[str, Any]]:
        arguments = ("--kills", str(kills), "--seed", str(_seed()), *_seconds())
        return run_program("tests/chaos/broker_kills.py", *arguments)

    return continued(_earlier("broker-kills") or None, "kills", _count(10_000, share), run)


def quorum_chaos(share: float) -> Outcome:
    """Kill, pause, stop and cut off brokers and etcd under load for ten minutes, on three brokers, then on five.

    The topics have write quorums. Producers are idempotent in the first half of each run, and send every request once
    in the second half.
    """
    passed, reports = True, {}
    for brokers in (3, 5):
        arguments = ("--brokers", str(brokers), "--seconds", str(_count(600, share)), "--seed", str(_seed()))
        code, reports[f"{brokers} brokers"] = run_program(
            "tests/chaos/chaos.py", "--mode", "quorum", *arguments
        )
        passed &= code == 0
    return passed, reports


def transaction_kills(share: float) -> Outcome:
    """Kill brokers and programs 300 times while programs and a streaming query write in transactions.

    Each order must have exactly one result in each of two topics, and the query must have copied each order once.
    """

    def run(kills: int) -> tuple[int, dict[str, Any]]:
        arguments = ("--kills", str(kills), "--seed", str(_seed()), *_seconds())
        return run_program("tests/chaos/transactions/transaction_kills.py", "--spark", *arguments)

    return continued(_earlier("transaction-kills") or None, "kills", _count(300, share), run)


def hand_overs(share: float) -> Outcome:
    """Hand a topic over between two clusters 100 times under load; brokers are killed in half of the rounds."""
    arguments = ("--hand-overs", str(_count(100, share)), "--seed", str(_seed()))
    code, report = run_program("tests/faults/hand_overs.py", *arguments)
    return code == 0, report


def link_worlds(share: float) -> Outcome:
    """Run 10,000 simulated worlds of a topic in two clusters, and find each dropped rule within as many new worlds."""
    return _worlds("links", share)


def quorum_worlds(share: float) -> Outcome:
    """Run 10,000 simulated worlds of write quorums, and find each dropped rule within as many new worlds."""
    return _worlds("quorums", share)


def transaction_worlds(share: float) -> Outcome:
    """Run 10,000 simulated worlds of transactions, and find each dropped rule within as many new worlds."""
    return _worlds("transactions", share)


def _worlds(suite: str, share: float) -> Outcome:
    arguments = ("--suite", suite, "--worlds", str(_count(10_000, share)))
    code, report = run_program("tests/simulation/proved_worlds.py", *arguments)
    return code == 0, report


def many_topics(share: float) -> Outcome:
    """Kill and restart a broker with up to 5,000 topics while 8 clients delete topics and 2 clients create topics."""
    passed, reports = True, {}
    for topics in (1000, 2000, 5000):
        count = str(_count(topics, share))
        code, reports[count] = run_program("tests/faults/many_topics.py", "--topics", count)
        passed &= code == 0
    return passed, reports


def overload(share: float) -> Outcome:
    """Run attacks and overload against a broker process, with full counts (small counts if `--share` is below 1)."""
    full = ("--hypothesis-profile", "prove", "--timeout", "600") if share >= 1 else ()
    return _tests("-m", "prove or scenario", "tests/overload", *full)


def operator_edits(share: float) -> Outcome:
    """Make 50 random edits of a Cluster and its Topics while operators are killed and the API server fails.

    After the edits, the operator must make no writes for 120 s.
    """
    seed = _seed()
    settings = {"FAIRLEAD_EDITS": str(_count(50, share)), "FAIRLEAD_SEED": str(seed)}
    passed, counts = _tests("tests/kubernetes/operator/test_random_edits.py", **settings)
    return passed, {"seed": seed, **counts}


def operator_topics(share: float) -> Outcome:
    """Create 500 Topics at once, which must be ready within a minute while the operator stays below 300 MiB."""
    del share
    return _tests("tests/kubernetes/operator/test_topics.py", "-k", "five_hundred")


def pods(share: float) -> Outcome:
    """Run clusters on real pods under load: scaling, lost disks, nodes and etcd members, and blocked rolls."""
    del share
    files = [str(path) for path in sorted(Path("tests/kubernetes/pods").glob("test_pods_*.py"))]
    return _tests(*files, "tests/kubernetes/pods/test_cluster_pods.py")


def transaction_model(share: float) -> Outcome:
    """Search every state of the transaction model, with all rules and with each rule switched off."""
    del share
    code, report = run_program("tests/model/transaction_model.py")
    return code == 0, report


def quorum_model(share: float) -> Outcome:
    """Search every state of the quorum replication model, with all rules and with each rule switched off."""
    del share
    code, report = run_program("tests/model/quorum_model.py")
    return code == 0, report


def recipes(share: float) -> Outcome:
    """Crash every program on the page about delivery guarantees 100 times."""
    arguments = ("--crashes", str(_count(100, share)), "--seed", str(_seed()))
    code, report = run_program("tests/recipes/recipe_crashes.py", *arguments)
    return code == 0, report


def spark_kills(share: float) -> Outcome:
    """Kill the driver or a Python worker of a streaming query 50 times.

    Files, the Delta table and the topic with `exactlyOnce` must contain each record exactly once, and the other topic
    at least once.
    """
    arguments = ("--kills", str(_count(50, share)), "--seed", str(_seed()))
    code, report = run_program("tests/spark/killed_queries.py", *arguments)
    return code == 0, report


def security(share: float) -> Outcome:
    """Replace certificates, keys and tokens under load, switch access rules on and off, and run a real token issuer.

    The tests also upgrade brokers of the previous release and downgrade them again, run a producer over its quota for
    ten minutes, measure the processor time of access decisions, and compare answers about hidden and missing names. The
    report contains the counts of each test.
    """
    del share
    return prove_tests("-m", "prove or scenario", "--timeout", "1800", "tests/security", EARLIER_RELEASE)


def compaction(share: float) -> Outcome:
    """Run the scenarios of compacted topics, among them Kafka's log compaction tester and 1,000 simulated worlds.

    The search of all states of replicas that were away, and the worlds without a rule of cleaning, run as well. The
    report contains the counts of each test.
    """
    del share
    passed, reports = True, {}
    for place, marks in COMPACTION.items():
        chosen = ("-m", marks) if marks else ()
        code, reports[place] = run_tests(*chosen, "--timeout", "1800", place, with_figures=True)
        passed &= code == 0
    return passed, reports


def searches(share: float) -> Outcome:
    """Run the Hypothesis tests with fifty times as many examples, which differ in each run."""
    del share
    command = [sys.executable, "-m", "pytest", "-n", "2", "-m", "hypothesis", "--hypothesis-profile", "prove"]
    command += ["--timeout", "1800", "-o", "time_budgets="]
    code = subprocess.run(command, check=False).returncode
    return code == 0, {"exit_code": code}


def scenarios(share: float) -> Outcome:
    """Run the tests marked `scenario` by folder, except those of `make chaos` and the parts `pods` and `security`."""
    del share
    passed, reports = True, {}
    left_out = (
        "--ignore=tests/kubernetes/pods/test_cluster_pods.py",
        "--ignore-glob=tests/kubernetes/pods/test_pods_*.py",
        f"--ignore={EARLIER_RELEASE}",
    )
    marked = {path.parts[1] for path in Path("tests").rglob("test_*.py") if SCENARIO in path.read_text()}
    for folder in sorted(marked - {"chaos", "security"}):
        arguments = ("-m", "scenario", "--timeout", "900", *left_out, f"tests/{folder}")
        code, reports[folder] = run_tests(*arguments)
        passed &= code == 0
        _progress(f"{folder}: {reports[folder]}")
    return passed, reports


PARTS: Final[dict[str, Callable[[float], Outcome]]] = {
    "access-searches": access_searches,
    "power-cuts": power_cuts,
    "cleaning-cuts": cleaning_cuts,
    "compaction": compaction,
    "bit-flips": bit_flips,
    "kills": kills,
    "batch-fuzz": batch_fuzz,
    "broker-kills": broker_kills,
    "hand-overs": hand_overs,
    "link-worlds": link_worlds,
    "many-topics": many_topics,
    "request-fuzz": request_fuzz,
    "wire-fuzz": wire_fuzz,
    "kafka-clients": kafka_clients,
    "kafka-failures": kafka_failures,
    "kafka-copies": kafka_copies,
    "kafka-move": kafka_move,
    "kafka-fuzz": kafka_fuzz,
    "kafka-suites": kafka_suites,
    "kafka-wire-fuzz": kafka_wire_fuzz,
    "operator-edits": operator_edits,
    "operator-topics": operator_topics,
    "overload": overload,
    "pods": pods,
    "quorum-chaos": quorum_chaos,
    "quorum-model": quorum_model,
    "quorum-worlds": quorum_worlds,
    "recipes": recipes,
    "scenarios": scenarios,
    "searches": searches,
    "security": security,
    "spark-kills": spark_kills,
    "transaction-kills": transaction_kills,
    "transaction-model": transaction_model,
    "transaction-worlds": transaction_worlds,
}


def _tests(*arguments: str, **settings: str) -> Outcome:
    """Run tests that write figures; return whether each has run and passed, and figures beside the tests' counts."""
    passed, counts = prove_tests(*arguments, **settings)
    figures = counts.pop("figures")
    return passed and bool(figures), {**counts, **figures}


def _count(full: int, share: float) -> int:
    return max(1, round(full * share))


def _seconds() -> tuple[str, ...]:
    """Return the option `--seconds` with the time limit of a part; empty without a time limit."""
    limit = os.environ.get(SECONDS_VARIABLE)
    return ("--seconds", limit) if limit else ()


def _earlier(part: str) -> dict[str, Any]:
    """Return the counts in the record of a part if the option `--add` is given; otherwise return an empty table."""
    return read_counts(part) if os.environ.get(ADD_VARIABLE) else {}


def _seed() -> int:
    return random.SystemRandom().randrange(1 << 31)


def _progress(text: str) -> None:
    sys.stderr.write(f"\r{text}" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Run the named parts, or all parts; return 0 if every part passed."""
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"parts to run ({', '.join(PARTS)}); default: all"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="factor for the counts of all parts, below 1 for a trial run"
    )
    parser.add_argument(
        "--seconds",
        help="time limit of broker-kills, transaction-kills and kafka-wire-fuzz, and of each of two runs of wire-fuzz",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="add the counts of broker-kills, transaction-kills, wire-fuzz and kafka-wire-fuzz to their records",
    )
    wanted = parser.parse_args(arguments)
    if wanted.seconds:
        os.environ[SECONDS_VARIABLE] = wanted.seconds
    if wanted.add:
        os.environ[ADD_VARIABLE] = "yes"
    unknown = [name for name in wanted.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    failed = []
    for name in wanted.parts or PARTS:
        print(f"+ {name}: {PARTS[name].__doc__}", flush=True)
        begun = time.monotonic()
        passed, counts = PARTS[name](wanted.share)
        path = write_record(name, passed=passed, counts=counts, seconds=time.monotonic() - begun)
        print(
            f"  {'passed' if passed else 'FAILED'} in {time.monotonic() - begun:.0f} s, see {path}",
            flush=True,
        )
        if not passed:
            failed.append(name)
    # The reference pages contain figures of the records.
    subprocess.run([sys.executable, "docs/generate/pages.py"], check=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
