#!/usr/bin/env bash
# Runs all checks except the tests. Each check runs even if an earlier check failed, so that one run
# reports all failures.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PATH="$PWD/.venv/bin:$PATH"
failed=()

check() {
    local name="$1"
    shift
    printf '+ %s\n' "$*"
    "$@" || failed+=("$name")
}

check lint ruff check .
check format ruff format --check .
check types mypy
check "types of tests and tools" mypy tests/plugins tests/architecture tests/contract tests/release tests/conftest.py .ci/test.py .ci/prose.py .ci/prove.py .ci/cluster.py .ci/manifests.py .ci/release.py .ci/native_wheels.py .ci/image.py .ci/image_bases.py .ci/kubernetes.py spark/image/*.py tests/kubernetes tests/checker/history_checker.py \
    tests/faults/lying_disk.py tests/faults/power_cuts.py tests/faults/cleaning_cuts.py tests/faults/killed_brokers.py tests/faults/bit_flips.py tests/recipes tests/model
check layers lint-imports --no-logo
check "sources and public types" pytest -q -n 2 tests/architecture tests/typing
check "reference pages" python docs/generate/pages.py --check
check "custom resource definitions" python docs/generate/definitions.py --check
check docs .ci/docs.sh
check changelog towncrier build --draft --version next --date today
check docstrings interrogate --no-color
check prose python .ci/prose.py
check spelling codespell api broker client console operator charts manifests tests benchmarks docs .ci *.md Makefile pyproject.toml zensical.toml

if ((${#failed[@]})); then
    printf 'check failed: %s\n' "${failed[*]}" >&2
    exit 1
fi
printf 'check passed\n'
