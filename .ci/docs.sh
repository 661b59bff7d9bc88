#!/usr/bin/env bash
# Builds the documentation site into site/; the build fails if a link points to a missing page. Generated reference
# pages are tracked files, and a test compares them with the catalogues, so building the site runs no code of the
# product.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
printf '+ zensical build --clean --strict\n'
NO_COLOR=1 .venv/bin/zensical build --clean --strict
