"""The profile file in the user's configuration folder, with names and addresses of clusters.

`main` reads the file before a command runs, and `fairlead profile` writes the file. Flags and `FAIRLEAD_BOOTSTRAP` take
precedence over the file.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fairlead.credentials import TOKEN_COMMAND_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLES
from fairlead.settings import FOLLOW_MOVES_VARIABLE, ONE_ADDRESS_VARIABLE
from fairlead.tls_files import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

BOOTSTRAP_VARIABLE = "FAIRLEAD_BOOTSTRAP"
PROFILE_VARIABLE = "FAIRLEAD_PROFILE"
FILE_VARIABLES = {
    "ca_file": CA_VARIABLE,
    "client_cert_file": CERT_VARIABLE,
    "client_key_file": KEY_VARIABLE,
}
"""Fields of a profile that name TLS files, each with the environment variable that clients read."""
TOKEN_FIELDS = {"token_file": TOKEN_FILE_VARIABLE, "token_command": TOKEN_COMMAND_VARIABLE}
"""Fields of a profile with the source of a token. A profile never contains a token itself (rule C6)."""


class ProfilesUnreadable(Exception):
    """The profile file cannot be read; the message names the file."""


class HomeUnknown(ProfilesUnreadable):
    """The user's configuration folder is unknown, for example in a container whose user id has no name."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Access to one cluster. The fields are named like the keys of the file and the arguments of clients."""

    bootstrap: str
    token_file: str | None = None
    token_command: str | None = None
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    one_address: bool = False
    follow_moves: bool = False

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Profile:
        """Return the profile in a table of the file. Raises `KeyError` without addresses."""
        texts = {name: str(document[name]) for name in TOKEN_FIELDS | FILE_VARIABLES if name in document}
        return cls(
            bootstrap=str(document["bootstrap"]),
            **texts,
            one_address=document.get("one_address") is True,
            follow_moves=document.get("follow_moves") is True,
        )

    def values(self) -> dict[str, str | bool]:
        """Return the fields that are set, in declaration order."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}


@dataclass(frozen=True, slots=True)
class Profiles:
    """Content of the profile file."""

    current: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Profiles by name, in the order of the file."""

    @classmethod
    def load(cls, path: Path) -> Profiles:
        """Read the profile file; return no profiles if the file does not exist. Raises `ProfilesUnreadable`."""
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            profiles = {name: Profile.of(each) for name, each in document.get("profiles", {}).items()}
            current = document.get("current")
            known = current if current in profiles else None
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
        return cls(known, profiles)

    def with_profile(self, name: str, profile: Profile) -> Profiles:
        """Return the profiles with one profile added or replaced; the first profile becomes the current profile."""
        return Profiles(self.current or name, {**self.profiles, name: profile})

    def using(self, name: str) -> Profiles:
        """Return the profiles with a different current profile."""
        return replace(self, current=name)

    def without(self, name: str) -> Profiles:
        """Return the profiles without one profile; if the current profile is removed, no profile is current."""
        left = {each: profile for each, profile in self.profiles.items() if each != name}
        return Profiles(self.current if self.current in left else None, left)

    def save(self, path: Path) -> None:
        """Write the profile file atomically; only the user can read it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [] if self.current is None else [f"current = {_quoted(self.current)}"]
        for name, profile in self.profiles.items():
            lines += ["", f"[profiles.{_quoted(name)}]"]
            lines += [f"{field} = {_quoted(value)}" for field, value in profile.values().items()]
        made = path.with_suffix(f".{os.getpid()}")
        made.touch(mode=0o600)
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


def apply_profile(*, with_token: bool = True) -> None:
    """Set the environment variables that clients read to the values of the profile.

    The values are the cluster's addresses, the TLS files, the use of one address and, with `with_token`, the source of
    the token. Without a profile, or with `FAIRLEAD_BOOTSTRAP`, no variable is set. Variables that are already set are
    kept. `FAIRLEAD_PROFILE` selects the profile; without the variable, the current profile is used. Raises
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
    if name not in profiles.profiles:
        message = f"{PROFILE_VARIABLE} is {name!r}, and there is no such profile in {profiles_file()}"
        raise ProfilesUnreadable(message)
    profile = profiles.profiles[name]
    os.environ[BOOTSTRAP_VARIABLE] = profile.bootstrap
    tokens = TOKEN_FIELDS if with_token and not any(map(os.environ.get, TOKEN_VARIABLES)) else {}
    for field_name, variable in (FILE_VARIABLES | tokens).items():
        value = getattr(profile, field_name)
        if value is not None and not os.environ.get(variable):
            os.environ[variable] = value
    if profile.one_address:
        os.environ.setdefault(ONE_ADDRESS_VARIABLE, "true")
    if profile.follow_moves:
        os.environ.setdefault(FOLLOW_MOVES_VARIABLE, "true")


def _quoted(text: str | bool) -> str:
    # A basic string of TOML is written like a JSON string, with two exceptions: TOML accepts neither the surrogate
    # pairs with which JSON escapes characters beyond 16 bits, nor an unescaped DEL.
    # TOML and JSON write booleans in the same way.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
