"""The names that install and run Fairlead: entry points, extras, custom resources, conditions and chart values."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import yaml

import checkout
import golden
from fairlead_api.resources.conditions import CONDITIONS
from made_files import make_chart_files

_PROJECT = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_POINTS = [
    EntryPoint(name, target, group)
    for group, points in ({"scripts": _PROJECT["scripts"]} | _PROJECT["entry-points"]).items()
    for name, target in points.items()
]


def package() -> Any:
    """Describe the names that an installation registers, without the modules that implement them, which may change."""
    return {
        "name": _PROJECT["name"],
        "extras": sorted(_PROJECT["optional-dependencies"]),
        "scripts": sorted(_PROJECT["scripts"]),
        "entry_points": {group: sorted(points) for group, points in _PROJECT["entry-points"].items()},
        "packages": sorted(
            path.rpartition("/")[2]
            for path in tomllib.loads((checkout.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
                "hatch"
            ]["build"]["targets"]["wheel"]["packages"]
        ),
    }


def resources() -> Any:
    """Describe the definitions of the custom resources without their sentences."""
    files = sorted((checkout.ROOT / "manifests/crds").glob("*.fairlead.dev.yaml"))
    return {
        path.stem: golden.without_texts(yaml.safe_load(path.read_text(encoding="utf-8"))) for path in files
    }


def conditions() -> Any:
    """Describe every condition of a resource: its reasons, their statuses and kinds."""
    return {
        name.value: {
            "kinds": sorted(kind.value for kind in entry.kinds),
            "reasons": {
                each.name: {
                    "statuses": sorted(each.statuses),
                    "kinds": sorted(kind.value for kind in each.kinds),
                }
                for each in entry.reasons
            },
        }
        for name, entry in CONDITIONS.items()
    }


def charts() -> Any:
    """Describe the values of each chart: names, defaults and allowed values."""
    make_chart_files()
    described = {}
    for folder in sorted((checkout.ROOT / "charts").iterdir()):
        schema = json.loads((folder / "values.schema.json").read_text(encoding="utf-8"))
        described[folder.name] = {
            "values": yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8")),
            "schema": golden.without_texts(schema),
        }
    return described


def test_the_package_is_unchanged() -> None:
    """The package keeps its extras, scripts, entry points and importable packages."""
    golden.assert_unchanged("package", package())


@pytest.mark.parametrize("point", _POINTS, ids=lambda point: point.name)
def test_every_entry_point_leads_somewhere(point: EntryPoint) -> None:
    """Every entry point of the package leads to a module with the registered object."""
    assert callable(point.load())


def test_the_custom_resources_are_unchanged() -> None:
    """Custom resources keep the name, type, default, bounds and rules of every field."""
    golden.assert_unchanged("resources", resources())


def test_the_conditions_are_unchanged() -> None:
    """Conditions keep their types, reasons and statuses."""
    golden.assert_unchanged("conditions", conditions())


def test_the_values_of_the_charts_are_unchanged() -> None:
    """Values of the charts keep their names, defaults and schemas."""
    golden.assert_unchanged("charts", charts())
