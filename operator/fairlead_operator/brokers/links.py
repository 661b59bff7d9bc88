"""Calls about one link, which the brokers of a Cluster carry out.

The reconciler of Links calls this module. Each call has a deadline. A call that contacts the source has a longer
deadline, because the brokers wait for the source.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

from fairlead import Admin
from fairlead.errors import (
    ConflictError,
    FixError,
    LinkInUseError,
    LinkNotFoundError,
    LinkSourceChangedError,
    LinkSourceUnreachableError,
    NotPossibleNowError,
    TopicNotFoundError,
)
from fairlead_api.bodies.links import LinkDescription, LinkTopic
from fairlead_operator.brokers.calls import BrokersUnavailable, broker_deadline
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.linking.link import LinkPlan

SOURCE_SECONDS: Final = 20.0
"""Deadline of a call for which the brokers ask the source, longer than their own deadline for the source's answer."""


class LinkRefused(Exception):
    """The brokers refuse a call about a link. The reason and the message are those of a condition."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


async def find_link(admin: Admin, name: str) -> LinkDescription | None:
    """Return a link; None if the link does not exist. Raises `BrokersUnavailable`."""
    async with broker_deadline(f"describe link {name}"):
        with contextlib.suppress(LinkNotFoundError):
            return await admin.describe_link(name)
    return None


async def list_topics(admin: Admin, name: str) -> list[LinkTopic]:
    """Return the topics of a link; empty if the link does not exist. Raises `BrokersUnavailable`."""
    async with broker_deadline(f"topics of link {name}"):
        with contextlib.suppress(LinkNotFoundError):
            return await admin.link_topics(name)
    return []


async def carry_out(admin: Admin, name: str, plan: LinkPlan) -> None:
    """Make the changes of a plan. Raises `LinkRefused` and `BrokersUnavailable`."""
    if plan.create is not None:
        async with _change(f"create link {name}", SOURCE_SECONDS):
            await admin.create_link(plan.create)
    if plan.alter is not None:
        async with _change(f"alter link {name}", SOURCE_SECONDS):
            await admin.alter_link(name, plan.alter)
    if plan.state is not None:
        async with _change(f"set the state of link {name}"):
            await (admin.pause_link(name) if plan.state == "paused" else admin.resume_link(name))


async def promote(admin: Admin, name: str, topics: Sequence[str], *, failover: bool) -> None:
    """Begin the promotion of mirrors, skipping mirrors that no longer exist. Raises like `carry_out`."""
    for topic in topics:
        async with _change(f"promote topic {topic} of link {name}"):
            with contextlib.suppress(TopicNotFoundError):
                await admin.promote_link(name, [topic], "failover" if failover else "planned")


async def delete_link(admin: Admin, name: str) -> None:
    """Delete a link, unless it does not exist. Raises `LinkRefused` while topics are mirrors of the link."""
    async with _change(f"delete link {name}"):
        with contextlib.suppress(LinkNotFoundError):
            await admin.delete_link(name)


@contextlib.asynccontextmanager
async def _change(what: str, seconds: float | None = None) -> AsyncIterator[None]:
    async with broker_deadline(what) if seconds is None else broker_deadline(what, seconds):
        try:
            yield
        except LinkSourceUnreachableError as error:
            raise LinkRefused(Finding("SourceUnreachable", error.detail)) from error
        except LinkSourceChangedError as error:
            raise LinkRefused(Finding("SourceChanged", error.detail)) from error
        except LinkInUseError as error:
            raise LinkRefused(Finding("LinkInUse", error.detail)) from error
        except (ConflictError, NotPossibleNowError) as error:
            # The call may succeed later, for instance after the feature level has been raised.
            raise BrokersUnavailable(str(error)) from error
        except FixError as error:
            raise LinkRefused(Finding("LinkRefused", f"{error.code}: {error.detail}")) from error
