"""The profile file in the user's configuration folder, which contains names and addresses of clusters.

`main` reads the file before a command runs, and `fairlead profile` writes the file. Flags and `FAIRLEAD_BOOTSTRAP` take
precedence over the file.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

BOOTSTRAP_VARIABLE = "FAIRLEAD_BOOTSTRAP"
PROFILE_VARIABLE = "FAIRLEAD_PROFILE"


class ProfilesUnreadable(Exception):
    """The profile file cannot be read; the message names the file."""


class HomeUnknown(ProfilesUnreadable):
    """The user's configuration folder is unknown, for example in a container whose user id has no name."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """Content of the profile file."""

    current: str | None = None
    bootstraps: Mapping[str, str] = field(default_factory=dict)
    """Addresses of each profile by its name, in the order of the file."""

    @classmethod
    def load(cls, path: Path) -> Profiles:
        """Read the profile file; return no profiles if the file does not exist. Raises `ProfilesUnreadable`."""
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            bootstraps = {name: str(each["bootstrap"]) for name, each in document.get("profiles", {}).items()}
            current = document.get("current")
            known = current if current in bootstraps else None
        except FileNotFoundError:
            return cls()
        except (
            OSError,
            tomllib.TOMLDecodeError,
            KeyError,
            AttributeError,
            TypeError,
            UnicodeDecodeError,
        ) as error:
            message = f"the profiles in {path} cannot be read: {error}"
            raise ProfilesUnreadable(message) from error
        return cls(known, bootstraps)

    def with_profile(self, name: str, bootstrap: str) -> Profiles:
        """Return the profiles with one profile added or replaced; the first profile becomes the current profile."""
        return Profiles(self.current or name, {**self.bootstraps, name: bootstrap})

    def using(self, name: str) -> Profiles:
        """Return the profiles with a different current profile."""
        return replace(self, current=name)

    def without(self, name: str) -> Profiles:
        """Return the profiles without one profile; if the current profile is removed, no profile is current."""
        left = {each: bootstrap for each, bootstrap in self.bootstraps.items() if each != name}
        return Profiles(self.current if self.current in left else None, left)

    def save(self, path: Path) -> None:
        """Write the profile file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.current is None else [f"current = {_quoted(self.current)}"]
        for name, bootstrap in self.bootstraps.items():
            lines += ["", f"[profiles.{_quoted(name)}]", f"bootstrap = {_quoted(bootstrap)}"]
        made = path.with_suffix(f".{os.getpid()}")
        made.write_text("\n".join(lines) + "\n", encoding="utf-8")
        made.replace(path)


def profiles_file() -> Path:
    """Return the path of the profile file. Raises `HomeUnknown`."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(folder) if folder else Path.home() / ".config") / "fairlead" / "profiles.toml"
    except RuntimeError as error:
        message = "profiles cannot be saved: neither HOME nor XDG_CONFIG_HOME is set"
        raise HomeUnknown(message) from error


def apply_profile() -> None:
    """Set the environment variable with the cluster's addresses from the profile, unless the variable is set.

    `FAIRLEAD_PROFILE` selects the profile; without the variable, the current profile is used. Raises
    `ProfilesUnreadable`, for example for an unknown profile.
    """
    if os.environ.get(BOOTSTRAP_VARIABLE):
        return
    wanted = os.environ.get(PROFILE_VARIABLE)
    try:
        profiles = Profiles.load(profiles_file())
    except HomeUnknown:
        if not wanted:
            return
        raise
    name = wanted or profiles.current
    if name is None:
        return
    if name not in profiles.bootstraps:
        message = f"{PROFILE_VARIABLE} is {name!r}, and there is no such profile in {profiles_file()}"
        raise ProfilesUnreadable(message)
    os.environ[BOOTSTRAP_VARIABLE] = profiles.bootstraps[name]


def _quoted(text: str) -> str:
    # A basic string of TOML is written like a JSON string, with two exceptions: TOML accepts neither the surrogate
    # pairs with which JSON escapes characters beyond 16 bits, nor an unescaped DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
