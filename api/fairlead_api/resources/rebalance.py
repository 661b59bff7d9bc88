"""Custom resource Rebalance: one throttled move of partitions, onto new brokers, off brokers, or over all brokers."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

from fairlead_api.bodies.operations import BROKER_ID_MAX
from fairlead_api.resources.cluster_status import Conditions
from fairlead_api.resources.quantities import Rate
from fairlead_api.resources.resource import Part, Resource
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import ObjectName, ShortText
from fairlead_api.resources.topic import REPLICAS_MAX

CONCURRENT_MOVES_MAX = 20
"""Maximum number of partitions that a Rebalance moves at the same time, equal to the limit of a drain."""
MOVES_MAX = 500
"""Maximum number of moves in one proposal, which keeps the status well below the API server's limit for an object."""
BROKERS_MAX = 2000

RebalanceMode: TypeAlias = Literal["Full", "AddBrokers", "RemoveBrokers"]
Approval: TypeAlias = Literal["Manual", "Automatic"]
RebalanceState: TypeAlias = Literal["ProposalPending", "ProposalReady", "Rebalancing", "Completed", "Stopped"]

Replicas = Annotated[tuple[int, ...], kubernetes(maxItems=REPLICAS_MAX)]
"""Ids of the brokers with a replica of a partition, the preferred leader first."""


class RebalancedCluster(Part):
    """The Cluster whose partitions move."""

    name: ObjectName
    """Name of the Cluster, which is in the namespace of the Rebalance."""


class RebalanceSpec(Part):
    """Desired move of partitions."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "(has(self.mode) && self.mode != 'Full') == (has(self.brokers) && self.brokers.size() > 0)",
                "brokers must be listed for the modes AddBrokers and RemoveBrokers, and only for these",
                ".brokers",
            ),
            Rule(
                "self.clusterRef == oldSelf.clusterRef && self.mode == oldSelf.mode && "
                "has(self.brokers) == has(oldSelf.brokers) && "
                "(!has(self.brokers) || self.brokers == oldSelf.brokers)",
                "clusterRef, mode and brokers cannot be changed: create another Rebalance",
                ".mode",
                RuleReason.FORBIDDEN,
            ),
        )
    )

    cluster_ref: RebalancedCluster
    """The Cluster whose partitions move. The reference cannot be changed."""
    mode: RebalanceMode = "Full"
    """Full: partitions are spread evenly over all brokers. AddBrokers: partitions move onto the listed new \
brokers until each has its share. RemoveBrokers: every partition moves off the listed brokers. The mode cannot be \
changed."""
    brokers: Annotated[
        tuple[Annotated[int, Field(ge=0, le=BROKER_ID_MAX)], ...],
        kubernetes(**{"maxItems": BROKERS_MAX, "x-kubernetes-list-type": "set"}),
    ] = ()
    """Ids of the added or removed brokers, which cannot be changed."""
    approval: Approval = "Manual"
    """Manual: the moves of a proposal begin when the annotation fairlead.dev/rebalance is `approve`. Automatic: the \
moves begin at once."""
    concurrent_moves: Annotated[int, Field(ge=1, le=CONCURRENT_MOVES_MAX)] = 5
    """Maximum number of partitions that move at the same time."""
    bytes_per_second: Rate | None = None
    """Maximum number of bytes per second that each broker copies for the moves, such as 20Mi; unlimited by default. \
A changed limit applies at once."""


class RebalanceMove(Part):
    """Move of one partition."""

    topic: ShortText
    """Name of the topic."""
    partition: int
    """Number of the partition."""
    previous: Replicas
    """Ids of the brokers with a replica when the proposal was computed, the preferred leader first."""
    replicas: Replicas
    """Ids of the brokers with a replica after the move, the preferred leader first."""


class BrokerLoad(Part):
    """Load of a broker when the proposal was computed, and after all its moves."""

    id: int
    """Id of the broker."""
    replicas: int
    """Number of replicas."""
    replicas_after: int
    """Number of replicas after the moves."""
    leaders: int
    """Number of partitions whose preferred leader is on the broker."""
    leaders_after: int
    """Number of partitions whose preferred leader is on the broker after the moves."""


class RebalanceProposal(Part):
    """Moves that bring the cluster closer to the goal of the Rebalance."""

    replicas_moved: int
    """Number of replicas that are copied to another broker."""
    moves: Annotated[tuple[RebalanceMove, ...], kubernetes(maxItems=MOVES_MAX)] = ()
    """Moves, in the order in which they start. A move that keeps the brokers and changes their order moves only the \
preferred leader."""
    brokers: Annotated[tuple[BrokerLoad, ...], kubernetes(maxItems=BROKERS_MAX)] = ()
    """Load of each broker before and after the moves."""
    complete: bool = True
    """Whether the goal is reached after these moves; otherwise another proposal follows, since a proposal has at most \
500 moves."""


class RebalanceProgress(Part):
    """Progress of the moves of the proposal."""

    partitions_total: int
    """Number of partitions in the proposal."""
    partitions_moved: int
    """Number of partitions whose move is finished, or that no longer exist."""
    partitions_moving: int
    """Number of partitions that are being moved."""
    bytes_left: int | None = None
    """Number of bytes that the moves in progress still have to copy; absent if a broker does not report them."""
    summary: ShortText = ""
    """Numbers of moved and of all partitions as `moved/total`, for listings."""


class RebalanceStatus(Part):
    """Observed state of the Rebalance."""

    observed_generation: int | None = None
    """Generation of the spec for which the status was written."""
    conditions: Conditions = ()
    """Conditions; the conditions reference explains each type and reason."""
    state: RebalanceState | None = None
    """State of the Rebalance: its proposal is computed, waits for approval, is carried out, or has ended."""
    proposal: RebalanceProposal | None = None
    """Proposed moves, which stay in the status after the moves have ended."""
    progress: RebalanceProgress | None = None
    """Progress of the moves; absent before the first move begins."""


class Rebalance(Resource):
    """A throttled move of partitions of a Fairlead cluster to other brokers."""

    spec: RebalanceSpec
    """Desired move of partitions."""
    status: RebalanceStatus = RebalanceStatus()
    """Observed state of the Rebalance."""
