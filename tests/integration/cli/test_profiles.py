"""Profiles: names for clusters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line_kit import CommandLine


@pytest.fixture
def elsewhere(shell_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """A user with a configuration folder of his own, and no cluster in the environment."""
    kept = {name: value for name, value in shell_environment.items() if name != "FAIRLEAD_BOOTSTRAP"}
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.slow
def test_a_profile_names_the_cluster(dev_broker: str, elsewhere: dict[str, str], tmp_path: Path) -> None:
    """The first is used, another by its name; a flag and the variable go before it."""
    fairlead = CommandLine(elsewhere)
    assert fairlead("profile", "list") == "\tPROFILE\tBOOTSTRAP\n"
    assert "and is used" in fairlead("profile", "create", "here", "--bootstrap", dev_broker)
    assert "fairlead profile use" in fairlead("profile", "create", "far", "--bootstrap", "http://127.0.0.1:1")
    assert "controller" in fairlead("cluster", "info")
    fairlead("profile", "use", "far")
    fairlead("topic", "list", code=5)
    fairlead("topic", "list", "--bootstrap", dev_broker)
    CommandLine({**elsewhere, "FAIRLEAD_BOOTSTRAP": dev_broker})("topic", "list")
    CommandLine({**elsewhere, "FAIRLEAD_PROFILE": "here"})("topic", "list")
    listed = json.loads(fairlead("profile", "list", "--output", "json"))

    assert listed == [
        {"name": "here", "bootstrap": dev_broker, "current": False},
        {"name": "far", "bootstrap": "http://127.0.0.1:1", "current": True},
    ]
    assert (tmp_path / "fairlead" / "profiles.toml").exists()


def test_a_profile_is_forgotten(elsewhere: dict[str, str]) -> None:
    """Only its name; without the one in use none is, and commands go to this machine again."""
    fairlead = CommandLine(elsewhere)
    fairlead("profile", "create", "near", "--bootstrap", "http://127.0.0.1:1")
    created = fairlead("profile", "create", "a far one", "--bootstrap", "http://127.0.0.1:2")
    assert "fairlead profile use 'a far one'" in created
    fairlead("profile", "use", "a far one")

    assert fairlead("profile", "delete", "near") == "profile near is forgotten\n"
    assert (
        fairlead("profile", "delete", "a far one") == "profile a far one is forgotten; none is in use now\n"
    )
    assert fairlead("profile", "list") == "\tPROFILE\tBOOTSTRAP\n"
    fairlead("profile", "delete", "near", code=3)
    assert "there are: none" in fairlead.errors


def test_profiles_that_are_not_there_or_cannot_be_read(elsewhere: dict[str, str], tmp_path: Path) -> None:
    """Are named, with what is allowed; a broken file is left as it is."""
    fairlead = CommandLine(elsewhere)
    fairlead("profile", "create", 'qu"ote', "--bootstrap", "http://127.0.0.1:1")
    fairlead("profile", "use", "none", code=3)
    assert 'there are: qu"ote' in fairlead.errors
    fairlead("profile", "create", " x", "--bootstrap", "http://127.0.0.1:1", code=2)
    assert "without spaces" in fairlead.errors
    fairlead("profile", "create", "bare", "--bootstrap", "here:9520", code=2)
    assert "did you mean http://here:9520?" in fairlead.errors
    unknown = CommandLine({**elsewhere, "FAIRLEAD_PROFILE": "none"})
    unknown("topic", "list", code=2)
    assert "FAIRLEAD_PROFILE is 'none'" in unknown.errors
    path = tmp_path / "fairlead" / "profiles.toml"
    path.write_text("profiles = 3")
    fairlead("topic", "list", code=2)
    assert str(path) in fairlead.errors
    fairlead("profile", "list", code=2)
    assert path.read_text() == "profiles = 3"
