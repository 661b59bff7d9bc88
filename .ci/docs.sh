#!/usr/bin/env bash
# Builds the documentation site into site/; a link to a page that does not exist fails. Generated reference pages
# are tracked files, and a test holds them equal to the catalogues, so building the site runs no code of ours.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
printf '+ zensical build --clean --strict\n'
NO_COLOR=1 .venv/bin/zensical build --clean --strict
