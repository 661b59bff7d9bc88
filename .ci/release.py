"""Build all files of a release in dist/: wheel, sdist, charts, manifests, bill of materials and list of licences.

    python .ci/release.py [--into DIRECTORY] [--bill-only]

The bill of materials (CycloneDX) and the list of licences cover all packages that `pip install
'fairlead[broker,kafka,operator,spark,tracing]'` installs, in the versions of the current environment, which match
`constraints/`. The program fails if a package has a licence that is not in `ALLOWED`, or if CHANGELOG.md has no section
for this version.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PRODUCT = "fairlead"
EXTRAS = ("broker", "kafka", "operator", "spark", "tracing")
BILL = "sbom.cdx.json"
LICENSES = "licenses.md"
# Allowed licences as packages spell them: as SPDX ids, or in the words of older classifiers.
ALLOWED = {
    "0BSD",
    "3-Clause BSD License",
    "Apache Software License",
    "Apache-2.0",
    "BSD License",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC License (ISCL)",
    "MIT",
    "MIT License",
    "MIT-0",
    # Licence of the certificates in certifi, which are distributed unchanged.
    "Mozilla Public License 2.0 (MPL 2.0)",
    "PSF-2.0",
    "Python Software Foundation License",
    "Zlib",
}
# Packages without a licence in their metadata, each with the licence that its licence file states.
READ_BY_HAND = {"pyreqwest": "Apache-2.0"}
BETWEEN = re.compile(r"\s+(?:AND|OR)\s+|;\s*")


def closure(product: str, extras: tuple[str, ...]) -> dict[str, str]:
    """Return the version of every distribution that is installed, including the product, keyed by canonical name."""
    found: dict[str, Distribution] = {}
    asked: set[tuple[str, str]] = set()
    waiting = [(product, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in asked:
            continue
        asked.add((name, extra))
        installed = found.get(name) or found.setdefault(name, distribution(name))
        for requirement in map(Requirement, installed.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                waiting += [(needed, wanted) for wanted in ("", *requirement.extras)]
    return {name: installed.version for name, installed in sorted(found.items())}


def licenses_of(packages: dict[str, str]) -> dict[str, str]:
    """Return the licence of each package, as stated in its metadata."""
    command = [
        str(BIN / "pip-licenses"),
        "--python",
        sys.executable,
        "--from=mixed",
        "--with-system",
        "--format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said: dict[str, str] = {
        canonicalize_name(each["Name"]): each["License"] for each in json.loads(done.stdout)
    }
    return {name: READ_BY_HAND.get(name) or said[name] for name in packages}


def not_allowed(licenses: dict[str, str]) -> dict[str, str]:
    """Return the packages with a licence that is not allowed, even if the licence covers only a part of the package."""
    return {
        name: licence
        for name, licence in licenses.items()
        if not {part.strip() for part in BETWEEN.split(licence)} <= ALLOWED
    }


def bill_of(packages: dict[str, str]) -> dict[str, Any]:
    """Return the CycloneDX document of the environment, reduced to the given packages."""
    command = [str(BIN / "cyclonedx-py"), "environment", "--output-reproducible", "--of", "JSON", "--pyproject",
               str(ROOT / "pyproject.toml"), sys.executable]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    bill: dict[str, Any] = json.loads(done.stdout)
    others = packages.keys() - {PRODUCT}
    bill["components"] = [each for each in bill["components"] if canonicalize_name(each["name"]) in others]
    kept = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    bill["dependencies"] = [
        {**each, "dependsOn": [reference for reference in each.get("dependsOn", ()) if reference in kept]}
        for each in bill["dependencies"]
        if each["ref"] in kept
    ]
    return bill


def table(packages: dict[str, str], licenses: dict[str, str]) -> str:
    """Return the list of licences as a Markdown page."""
    rows = [f"| {name} | {version} | {licenses[name]} |" for name, version in packages.items()]
    return "\n".join(["# Licences", "", "| package | version | licence |", "|---|---|---|", *rows, ""])


def is_described(version: str, changelog: str) -> bool:
    """Return whether the changelog has a section with a date for the version."""
    return re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE) is not None


def build(into: Path) -> None:
    """Build the sdist, and build the wheel from the sdist, with the build backend of the environment."""
    command = [
        str(BIN / "uv"),
        "build",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        str(into),
    ]
    subprocess.run(command, cwd=ROOT, check=True)


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--bill-only", action="store_true", help="write only the bill and the licences")
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    packages = closure(PRODUCT, EXTRAS)
    version = packages[PRODUCT]
    if not options.bill_only and not is_described(version, (ROOT / "CHANGELOG.md").read_text()):
        print(
            f"CHANGELOG.md has no section of {version}: towncrier build --version {version}", file=sys.stderr
        )
        return 1
    licenses = licenses_of(packages)
    if refused := not_allowed(licenses):
        for name, licence in refused.items():
            print(f"{name}: the licence {licence!r} is not allowed", file=sys.stderr)
        return 1
    if not options.bill_only:
        build(options.into)
        native = [sys.executable, str(ROOT / ".ci/native_wheels.py"), str(options.into)]
        subprocess.run(native, check=True)
        packing = [sys.executable, str(ROOT / ".ci/manifests.py"), "--pack", str(options.into)]
        subprocess.run(packing, check=True)
    (options.into / BILL).write_text(json.dumps(bill_of(packages), indent=2) + "\n")
    (options.into / LICENSES).write_text(table(packages, licenses))
    print(
        f"{len(packages)} packages; {options.into} has {', '.join(sorted(p.name for p in options.into.iterdir()))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
