"""Profiles: names for clusters on the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line_kit import CommandLine


@pytest.fixture
def elsewhere(shell_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with a configuration folder and no cluster."""
    kept = {name: value for name, value in shell_environment.items() if name != "FAIRLEAD_BOOTSTRAP"}
    return {**kept, "XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.slow
def test_a_profile_names_the_cluster(dev_broker: str, elsewhere: dict[str, str], tmp_path: Path) -> None:
    """The first profile names the cluster unless another profile, `--bootstrap` or `FAIRLEAD_BOOTSTRAP` does."""
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
    """A cluster of a deleted profile is unaffected, and without a profile commands address this machine."""
    fairlead = CommandLine(elsewhere)
    fairlead("profile", "create", "near", "--bootstrap", "http://127.0.0.1:1")
    created = fairlead("profile", "create", "a far one", "--bootstrap", "http://127.0.0.1:2")
    assert "fairlead profile use 'a far one'" in created
    fairlead("profile", "use", "a far one")

    assert fairlead("profile", "delete", "near") == "profile near is deleted\n"
    assert (
        fairlead("profile", "delete", "a far one")
        == "profile a far one is deleted; no profile is in use now\n"
    )
    assert fairlead("profile", "list") == "\tPROFILE\tBOOTSTRAP\n"
    fairlead("profile", "delete", "near", code=3)
    assert "existing profiles: none" in fairlead.errors


def test_changes_of_profiles_are_printed_for_programs(elsewhere: dict[str, str]) -> None:
    """A command that changes profiles prints its result for programs in the format of the list."""
    fairlead = CommandLine(elsewhere)
    as_json = ("--output", "json")
    near, far = "http://127.0.0.1:1", "http://127.0.0.1:2"
    created = [
        json.loads(fairlead("profile", "create", name, "--bootstrap", address, *as_json))
        for name, address in {"near": near, "far": far}.items()
    ]
    used = json.loads(fairlead("profile", "use", "far", *as_json))

    assert created == [
        {"name": "near", "bootstrap": near, "current": True},
        {"name": "far", "bootstrap": far, "current": False},
    ]
    assert used == {"name": "far", "bootstrap": far, "current": True}
    assert fairlead("profile", "delete", "near", "--output", "yaml") == "name: near\ncurrent: far\n"
    assert json.loads(fairlead("profile", "delete", "far", *as_json)) == {"name": "far", "current": None}


def test_profiles_that_are_not_there_or_cannot_be_read(elsewhere: dict[str, str], tmp_path: Path) -> None:
    """The error for a missing profile lists the existing profiles, and an unreadable profile file is not changed."""
    fairlead = CommandLine(elsewhere)
    fairlead("profile", "create", 'qu"ote', "--bootstrap", "http://127.0.0.1:1")
    fairlead("profile", "use", "none", code=3)
    assert 'existing profiles: qu"ote' in fairlead.errors
    fairlead("profile", "create", " x", "--bootstrap", "http://127.0.0.1:1", code=2)
    assert "without surrounding spaces" in fairlead.errors
    fairlead("profile", "create", "torn\udcff", "--bootstrap", "http://127.0.0.1:1", code=2)
    assert "of printable characters" in fairlead.errors
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
    path.write_text("current = [1]")
    fairlead("topic", "list", code=2)
    assert str(path) in fairlead.errors


@pytest.mark.scenario
@pytest.mark.parametrize("name", ["\U0001f680", "größe", 'qu"ote\\'])
def test_a_profile_may_have_any_name_that_can_be_read(elsewhere: dict[str, str], name: str) -> None:
    """A profile that `create` accepts is read by every later command."""
    fairlead = CommandLine(elsewhere)
    fairlead("profile", "create", name, "--bootstrap", "http://127.0.0.1:1")
    listed = json.loads(fairlead("profile", "list", "--output", "json"))

    assert listed == [{"name": name, "bootstrap": "http://127.0.0.1:1", "current": True}]
    fairlead("topic", "list", code=5)


@pytest.mark.slow
def test_only_commands_that_use_a_profile_need_it(
    dev_broker: str, elsewhere: dict[str, str], tmp_path: Path
) -> None:
    """A profile is not read by the help, by a broker or by a command with an address."""
    path = tmp_path / "fairlead" / "profiles.toml"
    path.parent.mkdir()
    path.write_text("profiles = 3")
    fairlead = CommandLine(elsewhere)

    assert "Usage: fairlead" in fairlead("--help")
    assert "_fairlead_completion" in fairlead("completion", "bash")
    assert fairlead("version").startswith("fairlead ")
    fairlead("broker", "start", "--config", "nowhere.toml", code=2)
    assert "nowhere.toml" in fairlead.errors
    assert "controller" in fairlead("cluster", "info", "--bootstrap", dev_broker)
    fairlead("cluster", "info", code=2)
    assert str(path) in fairlead.errors
    fairlead("job", "run", "nothing", code=2)
    assert str(path) in fairlead.errors


def test_a_home_is_optional(elsewhere: dict[str, str]) -> None:
    """A user without a home directory, as in containers, needs no profile, and a requested profile is an error."""
    unshare = ["unshare", "--user", "--map-user=12345"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no user without a name can be created here")
    homeless = {name: value for name, value in elsewhere.items() if name not in {"HOME", "XDG_CONFIG_HOME"}}
    command = [*unshare, sys.executable, "-m", "fairlead.cli.main", "topic", "list", "--bootstrap"]
    command += ["http://127.0.0.1:1"]
    alone = subprocess.run(command, env=homeless, check=False, capture_output=True, text=True)
    command[-2:] = []
    named = subprocess.run(
        command, env={**homeless, "FAIRLEAD_PROFILE": "far"}, check=False, capture_output=True, text=True
    )

    assert (alone.returncode, "no answer" in alone.stderr) == (5, True), alone.stderr
    assert (named.returncode, named.stderr) == (
        2,
        "error: profiles cannot be saved: neither HOME nor XDG_CONFIG_HOME is set\n",
    )
