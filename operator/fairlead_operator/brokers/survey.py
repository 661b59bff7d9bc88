"""What the brokers of a Cluster say of themselves, asked in one go before a plan is made.

Called by the reconcile of Clusters. Must not know what is made of the answer.
"""

from __future__ import annotations

from typing import Final

from fairlead import Admin
from fairlead_operator.brokers.calls import broker_deadline
from fairlead_operator.plan.observed import BrokersAnswer

SURVEY_SECONDS: Final = 10.0
"""For all calls together; metadata of thousands of topics included."""


async def survey(admin: Admin, *, with_metadata: bool) -> BrokersAnswer:
    """Ask for brokers, configuration, release and, where wanted, topics. Raises `BrokersUnavailable`.

    Brokers are asked for before their replicas, so that a broker that was seen cordoned gets none that were not seen.
    """
    async with broker_deadline("survey of the brokers", SURVEY_SECONDS):
        cluster = await admin.cluster()
        brokers = {each.id: each for each in await admin.brokers()}
        versions = await admin.versions()
        config = await admin.cluster_config()
        metadata = await admin.metadata() if with_metadata else None
    return BrokersAnswer(
        cluster_id=cluster.cluster_id,
        controller=cluster.controller,
        release=versions.release,
        feature_level=versions.feature_level,
        brokers=brokers,
        config=config,
        metadata=metadata,
    )
