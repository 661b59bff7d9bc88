"""The file of profiles: names of clusters and their addresses, in the user's configuration folder.

Read by `main` before a command runs, written by `fairlead profile`. Flags and `FAIRLEAD_BOOTSTRAP` go before it.
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
    """The file is not what `fairlead profile` writes; the message names it."""


class HomeUnknown(ProfilesUnreadable):
    """The folder of this user's configuration is unknown: containers run under user ids without a name."""


@dataclass(frozen=True, slots=True)
class Profiles:
    """What the file says."""

    current: str | None = None
    bootstraps: Mapping[str, str] = field(default_factory=dict)
    """Addresses by the profile's name, in the order of the file."""

    @classmethod
    def load(cls, path: Path) -> Profiles:
        """Read the file; without one there are no profiles. Raises `ProfilesUnreadable`."""
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
        """Return them with one more, or another one under its name; the first is the current one."""
        return Profiles(self.current or name, {**self.bootstraps, name: bootstrap})

    def using(self, name: str) -> Profiles:
        """Return them with another current one."""
        return replace(self, current=name)

    def without(self, name: str) -> Profiles:
        """Return them without one; was it the current one, then none is."""
        left = {each: bootstrap for each, bootstrap in self.bootstraps.items() if each != name}
        return Profiles(self.current if self.current in left else None, left)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.current is None else [f"current = {_quoted(self.current)}"]
        for name, bootstrap in self.bootstraps.items():
            lines += ["", f"[profiles.{_quoted(name)}]", f"bootstrap = {_quoted(bootstrap)}"]
        made = path.with_suffix(f".{os.getpid()}")
        made.write_text("\n".join(lines) + "\n", encoding="utf-8")
        made.replace(path)


def profiles_file() -> Path:
    """Return where the profiles are. Raises `HomeUnknown`."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(folder) if folder else Path.home() / ".config") / "fairlead" / "profiles.toml"
    except RuntimeError as error:
        message = "there is no place for profiles: neither HOME nor XDG_CONFIG_HOME is set"
        raise HomeUnknown(message) from error


def apply_profile() -> None:
    """Let commands find the cluster of the profile, where nothing else names one.

    That is the one of `FAIRLEAD_PROFILE`, or the one in use. Raises `ProfilesUnreadable`, also for a name that is
    unknown.
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
    # A basic string of TOML is written as one of JSON, but that JSON escapes what is beyond 16 bits in two halves, and
    # leaves DEL as it is: TOML reads neither.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
