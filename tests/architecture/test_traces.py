"""No file of the checkout names folders or registries of the machine on which it was written."""

from __future__ import annotations

import re

import checkout

# The patterns are written so that they do not match themselves.
MACHINE_PATH = re.compile(r"/(?:root|home/\w+|Users/\w+|work/main|work/shared|tmp/plan)/")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven\.|maven\.apache\.org/maven2|registry\.npmjs"
    r"|static\.crates\.io|index\.crates\.io|proxy\.golang\.org|deb\.debian\.org"
)


def texts() -> dict[str, str]:
    """Return every text file of the checkout."""
    found = {}
    for path in checkout.files():
        data = (checkout.ROOT / path).read_bytes()
        if b"\0" not in data:
            found[str(path)] = data.decode(errors="replace")
    return found


def test_no_file_names_a_path_of_a_machine() -> None:
    """No file contains an absolute path to a home folder or a work folder."""
    assert {name: found[0] for name, text in texts().items() if (found := MACHINE_PATH.search(text))} == {}


def test_no_file_names_a_package_registry() -> None:
    """No file contains the address of a package registry, which is a setting of the machine."""
    assert {name: found[0] for name, text in texts().items() if (found := REGISTRY_HOST.search(text))} == {}


def test_constraints_hold_a_hash_for_every_package() -> None:
    """Every pinned package of every part has at least one hash, so that a changed file is refused."""
    for path in sorted((checkout.ROOT / "constraints").glob("*.txt")):
        entries = re.split(r"^(?=[a-z0-9])", path.read_text(), flags=re.MULTILINE)

        assert [entry for entry in entries if "==" in entry and "--hash=sha256:" not in entry] == []
