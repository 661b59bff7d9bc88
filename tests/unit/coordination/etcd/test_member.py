from __future__ import annotations

import pytest

from fairlead_broker.coordination.etcd.member import is_sound


@pytest.mark.parametrize(
    ("version", "sound"),
    [
        ("3.6.16", True),
        ("3.6.9", True),
        ("3.6.8", False),
        ("3.5.28", True),
        ("3.5.2", False),
        ("3.4.42", True),
        ("3.4.41", False),
        ("3.3.27", False),
        ("3.7.0", True),
        ("3.7.0-rc.1", True),
        ("4.0.0", True),
        ("unknown", True),
    ],
)
def test_releases_with_known_faults_are_recognised(version: str, sound: bool) -> None:
    """An etcd release with known faults is recognised by its series, and an unknown version is accepted."""
    assert is_sound(version) is sound
