"""The documents of a release: the bill of materials, the licences of its packages, and the changelog."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from types import ModuleType

import pytest

import checkout

# The tools read the metadata of every package in the environment, which takes 15 seconds without load.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = checkout.ROOT / ".ci/release.py"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """Return the program that makes a release, as a module."""
    spec = importlib.util.spec_from_file_location("release_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.scenario
def test_the_bill_and_the_licences_name_every_package(
    release: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The bill of materials and the licences list every package of the extras with its version, and no others."""
    into = tmp_path_factory.mktemp("bill")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--bill-only", "--into", str(into)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    bill = json.loads((into / "sbom.cdx.json").read_text())
    names = {each["name"].lower().replace("_", "-") for each in bill["components"]}
    packages = release.closure("fairlead", release.EXTRAS)

    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "fairlead"
    assert names == set(packages) - {"fairlead"}
    assert {"pyarrow", "granian", "kopf", "pyspark", "py4j", "opentelemetry-sdk"} <= names
    assert not names & {"pytest", "ruff", "mypy", "schemathesis"}
    assert all(each["version"] for each in bill["components"])
    assert all(
        f"| {name} | {version} |" in (into / "licenses.md").read_text() for name, version in packages.items()
    )


def test_the_changelog_describes_this_version(release: ModuleType) -> None:
    """The changelog has a dated section for the released version, and no section for the next version."""
    changelog = (checkout.ROOT / "CHANGELOG.md").read_text()
    version = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert release.is_described(version, changelog)
    assert not release.is_described(f"{version}1", changelog)
    assert not release.is_described(version, "## 9.9.9 (2026-11-22)\n")


def test_no_package_has_a_licence_that_is_not_allowed(release: ModuleType) -> None:
    """Packages of base, broker, operator, Spark and tracing have licences that allow redistribution."""
    packages = release.closure("fairlead", release.EXTRAS)
    licenses = release.licenses_of(packages)

    assert len(licenses) > 50
    assert release.not_allowed(licenses) == {}


@pytest.mark.parametrize("told", ["GPL-3.0-only", "MIT AND AGPL-3.0-only", "UNKNOWN", "Apache-2.0; LGPL"])
def test_another_licence_is_refused(release: ModuleType, told: str) -> None:
    """A package is refused unless every part of its licence expression is allowed."""
    assert release.not_allowed({"fine": "MIT", "one": told}) == {"one": told}
