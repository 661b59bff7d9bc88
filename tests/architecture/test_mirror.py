"""The unit tests mirror the product: the tests of a package are in a folder with the package's name."""

from __future__ import annotations

from pathlib import Path

import checkout

UNIT = Path("tests/unit")
HOMES = {
    "api": Path("api/fairlead_api"),
    "benchmarks": Path("benchmarks"),
    "cli": Path("client/fairlead/cli"),
    "client": Path("client/fairlead"),
    "console": Path("console/fairlead_console"),
    "operator": Path("operator/fairlead_operator"),
    "spark": Path("spark/fairlead_spark"),
}
"""Source folder for each folder directly below `tests/unit/` that is not named after a broker package."""
PROGRAMS = {Path("tests/unit/spark/image"): Path("spark/image")}
BROKER = Path("broker/fairlead_broker")


def mirrored(folder: Path) -> Path:
    """Return the source folder that a folder of unit tests covers."""
    if folder in PROGRAMS:
        return PROGRAMS[folder]
    first, *further = folder.relative_to(UNIT).parts or ("",)
    return HOMES.get(first, BROKER / first).joinpath(*further)


def unit_tests() -> list[Path]:
    """List the files of unit tests."""
    return [path for path in checkout.python_files("tests") if path.is_relative_to(UNIT)]


def test_every_folder_of_unit_tests_has_a_package() -> None:
    """Every folder below `tests/unit/` has the name of a source folder."""
    folders = {path.parent for path in unit_tests()}

    assert folders
    assert [
        str(folder) for folder in sorted(folders) if not (checkout.ROOT / mirrored(folder)).is_dir()
    ] == []


def test_a_file_with_the_name_of_a_module_is_beside_its_package() -> None:
    """A file of unit tests that is named like a module is in the folder that mirrors the module's folder."""
    sources = checkout.python_files(*checkout.PACKAGE_FOLDERS, "spark", "benchmarks")
    modules = {path.stem for path in sources}
    elsewhere = [
        str(path)
        for path in unit_tests()
        for name in (path.stem.removeprefix("test_"),)
        if path.stem.startswith("test_") and name in modules
        if not any((checkout.ROOT / mirrored(path.parent) / each).exists() for each in (f"{name}.py", name))
    ]

    assert elsewhere == []
