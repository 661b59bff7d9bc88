"""Installation of wheel and sdist alone: SDK and command line, without the broker's packages."""

from __future__ import annotations

import json
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import checkout
from install_kit import build, install, new_environment, run

pytestmark = pytest.mark.slow


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel by name, without its RECORD, whose order may differ."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel without extras into a new environment, and return its folder of programs."""
    programs = new_environment(tmp_path_factory.mktemp("bare"))
    install(programs, wheel)
    return programs


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """The wheel contains the packages with their type markers and the licence, but no tests."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "fairlead",
        "fairlead_api",
        "fairlead_broker",
        "fairlead_console",
        "fairlead_operator",
        "fairlead_spark",
        "pyspark_fairlead",
        "pyspark_fairlead_delta",
    }
    packages = (
        "fairlead",
        "fairlead_api",
        "fairlead_broker",
        "fairlead_console",
        "fairlead_operator",
        "fairlead_spark",
    )
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    assert [name for name in names if name.endswith("licenses/LICENSE")] != []


def test_the_sdist_is_complete(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """The sdist builds the same wheel as the checkout, and has licence, readme and changelog."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = next(tmp_path.iterdir())
    build("--wheel", source, into=tmp_path / "from-sdist")

    assert contents(next((tmp_path / "from-sdist").glob("*.whl"))) == contents(wheel)
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= {
        path.name for path in source.iterdir()
    }


def test_the_version_comes_from_one_place(wheel: Path, bare: Path, tmp_path: Path) -> None:
    """The version in pyproject.toml is the version of wheel, sdist, command line and charts."""
    project = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    told = json.loads(run(bare / "fairlead", "version", "--output", "json", cwd=tmp_path).stdout)
    charts = [yaml.safe_load(path.read_text()) for path in checkout.ROOT.glob("charts/*/Chart.yaml")]

    assert wheel.name == f"fairlead-{version}-py3-none-any.whl"
    assert (wheel.parent / f"fairlead-{version}.tar.gz").exists()
    assert version in json.dumps(told)
    assert {chart["appVersion"] for chart in charts} == {version}


def test_the_sdk_imports(bare: Path, tmp_path: Path) -> None:
    """The SDK is imported without loading a package of the broker."""
    program = (
        "import sys, fairlead; sys.exit(any(name.startswith('fairlead_broker') for name in sys.modules))"
    )
    done = run(bare / "python", "-c", program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr


def test_the_command_line_shows_its_help(bare: Path, tmp_path: Path) -> None:
    """The command line shows its commands without a cluster and without an extra."""
    done = run(bare / "fairlead", "--help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "produce" in done.stdout
    assert "consume" in done.stdout


def test_a_command_of_a_missing_extra_names_the_extra(bare: Path, tmp_path: Path) -> None:
    """A command from a missing extra ends with exit code 2 and the line that installs the extra."""
    for extra in ("broker", "operator"):
        done = run(bare / "fairlead", extra, "start", cwd=tmp_path)

        assert done.returncode == 2
        assert f"fairlead[{extra}]" in done.stderr
