"""Invalid settings of a consumer in a group are refused before any call."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fairlead import Consumer
from fairlead.errors import InvalidGroupNameError, InvalidTopicNameError, SettingError
from fairlead.group.settings import CommitMode, GroupSettings
from fairlead.settings import OffsetPolicy
from refusals import raises


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"topics": "flights"}, "group"),
        ({"group": "g"}, "topics"),
        ({"group": "g", "topics": "flights", "pattern": "f.*"}, "topics"),
        ({"group": "g", "topics": "flights", "commit": "sometimes"}, "commit"),
        ({"group": "g", "topics": "flights", "start": "middle"}, "start"),
        ({"group": "g", "topics": "flights", "session_timeout": "10ms"}, "session_timeout"),
        ({"group": "g", "topics": "flights", "rebalance_timeout": "2h"}, "rebalance_timeout"),
        ({"group": "g", "topics": "flights", "processing_timeout": "0s"}, "processing_timeout"),
        ({"group": "g", "topics": "flights", "auto_commit_interval": "0s"}, "auto_commit_interval"),
        ({"group": "g", "topics": "flights", "assignor": "sticky"}, "assignor"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, str], name: str) -> None:
    """An invalid setting is refused with its name, its value and the allowed values."""
    with raises(SettingError, name=name):
        Consumer(**settings)  # type: ignore[arg-type]


def test_names_are_checked_as_the_cluster_does() -> None:
    """Names of groups, static members and topics are checked by the cluster's rules."""
    with pytest.raises(InvalidGroupNameError):
        Consumer(group="a\tgroup", topics="flights")
    with pytest.raises(InvalidGroupNameError):
        Consumer(group="g", topics="flights", instance_id="an\tid")
    with pytest.raises(InvalidTopicNameError):
        Consumer(group="g", topics=["flights", "no topic"])


def test_a_subscription_contains_all_settings() -> None:
    """A member's subscription contains all settings in the units of the contract."""
    settings = GroupSettings(
        group="g",
        topics=("flights",),
        start=timedelta(minutes=10),
        commit=CommitMode.BEFORE,
        session_timeout_seconds=1.5,
        rebalance_timeout_seconds=60,
        instance_id="one",
        rack="r1",
        assignor="range",
    )
    subscription = settings.subscription

    assert (subscription.session_timeout_ms, subscription.rebalance_timeout_ms) == (1_500, 60_000)
    assert (subscription.instance_id, subscription.rack, subscription.assignor) == ("one", "r1", "range")
    assert GroupSettings(group="g", pattern="f.*").start is OffsetPolicy.EARLIEST


async def test_what_needs_a_group_or_none_says_so() -> None:
    """A member of a group refuses `assign`, and a consumer without a group refuses `membership` and `commit`."""
    async with Consumer(group="g", topics="flights") as member, Consumer() as alone:
        with raises(SettingError, name="group", value="g"):
            await member.assign(topic="flights")
        with raises(SettingError, name="group", value=None):
            await alone.commit()
        with raises(SettingError, name="group", value=None):
            _ = alone.membership
        assert member.membership.state == "joining"
