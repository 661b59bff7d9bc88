"""Invalid settings of a consumer in a group are refused before any call."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fairlead import Consumer
from fairlead.errors import InvalidGroupNameError, InvalidTopicNameError, SettingError
from fairlead.group.settings import CommitMode, GroupSettings
from fairlead.settings import OffsetPolicy


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"topics": "flights"}, "group=None"),
        ({"group": "g"}, "topics=None"),
        ({"group": "g", "topics": "flights", "pattern": "f.*"}, "pattern instead"),
        ({"group": "g", "topics": "flights", "commit": "sometimes"}, "commit='sometimes'"),
        ({"group": "g", "topics": "flights", "start": "middle"}, "start='middle'"),
        ({"group": "g", "topics": "flights", "session_timeout": "10ms"}, "session_timeout='0.01 s'"),
        ({"group": "g", "topics": "flights", "rebalance_timeout": "2h"}, "rebalance_timeout='7200 s'"),
        ({"group": "g", "topics": "flights", "processing_timeout": "0s"}, "processing_timeout=0"),
        ({"group": "g", "topics": "flights", "auto_commit_interval": "0s"}, "auto_commit_interval=0"),
        ({"group": "g", "topics": "flights", "assignor": "sticky"}, "assignor='sticky'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, str], told: str) -> None:
    """An invalid setting is refused with its name, its value and the allowed values."""
    with pytest.raises(SettingError, match=told):
        Consumer(**settings)  # type: ignore[arg-type]


def test_names_are_checked_as_the_cluster_does() -> None:
    """Names of groups, static members and topics are checked by the cluster's rules."""
    with pytest.raises(InvalidGroupNameError, match="a group"):
        Consumer(group="a group", topics="flights")
    with pytest.raises(InvalidGroupNameError, match="an id"):
        Consumer(group="g", topics="flights", instance_id="an id")
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
        with pytest.raises(SettingError, match="group='g'"):
            await member.assign(topic="flights")
        with pytest.raises(SettingError, match="group=None"):
            await alone.commit()
        with pytest.raises(SettingError, match="group=None"):
            _ = alone.membership
        assert member.membership.state == "joining"
