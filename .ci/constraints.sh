#!/usr/bin/env bash
# Resolves the dependencies in pyproject.toml for every platform and writes constraints/, with hashes and without the
# URL of an index. The smaller parts use the versions of the largest part, so that all parts have the same versions.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

solve() {
    local part="$1"
    shift
    printf '+ constraints/%s.txt\n' "$part"
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url \
        --no-emit-package fairlead-kafka-records "$@" -o "constraints/$part.txt" --upgrade
}

solve dev pyproject.toml --extra broker --extra console --extra kafka --extra operator --extra spark --extra tracing --group dev
solve demo pyproject.toml --extra broker --extra console --extra spark --group demo -c constraints/dev.txt
solve image pyproject.toml --extra broker --extra console --extra kafka --extra operator --extra tracing -c constraints/dev.txt
solve image-spark pyproject.toml --extra spark --extra tracing -c constraints/dev.txt
mkdir -p build
# Versions of the packages in the largest part, without hashes and without PySpark.
grep -E '^[a-z]' constraints/dev.txt | grep -v '^pyspark==' | sed 's/ *\\$//' > build/versions.txt
solve spark-oldest pyproject.toml --extra broker --extra spark --group demo --group spark-oldest -c build/versions.txt
solve bench --group bench -c constraints/dev.txt
solve setup --group setup -c constraints/dev.txt
