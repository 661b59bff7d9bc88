"""Cases of the alerts on the operator; see `alert_cases`."""

from __future__ import annotations

from typing import Final

from alert_series import WHERE, Case, Firing, labelled, of_operator, pair


def condition(type_: str, status: str, reason: str, **labels: str) -> str:
    """Return the series of a condition of the Cluster main in shop, from an operator in ops."""
    where = {"namespace": "ops", "kind": "Cluster", "resource_namespace": "shop", "resource": "main"}
    return of_operator(
        "fairlead_operator_condition",
        **{**where, "condition": type_, "status": status, "reason": reason, **labels},
    )


def of_backup(reason: str) -> str:
    """Return the series of the Ready condition of the EtcdBackup nightly."""
    return condition("Ready", "False", reason, kind="EtcdBackup", resource="nightly")


def of_rebalance(reason: str) -> str:
    """Return the series of the Ready condition of the Rebalance spread."""
    return condition("Ready", "False", reason, kind="Rebalance", resource="spread")


def partitions_left(rebalance: str) -> str:
    """Return the series of the partitions that a Rebalance in shop has not moved yet."""
    return of_operator(
        "fairlead_operator_rebalance_partitions_left",
        namespace="ops",
        resource_namespace="shop",
        resource=rebalance,
    )


OPERATOR: Final = (
    *pair(
        "FairleadOperatorLeaders",
        7,
        {of_operator("fairlead_operator_leader", pod="a", job="shop/one"): "0+0x7"},
        "0 operators in shop hold the Lease; it should be 1.",
        {"namespace": "shop", "job": "shop/one"},
        {
            of_operator("fairlead_operator_leader", pod="a"): "1+0x7",
            of_operator("fairlead_operator_leader", pod="b"): "0+0x7",
        },
    ),
    # The pod is missing, or waits for a node.
    Case(
        alert="FairleadOperatorLeaders",
        series={of_operator("fairlead_operator_leader", pod="a", job="shop/one"): "1+0x3 stale"},
        minute=12,
        fires=Firing(
            labels={"namespace": "shop", "job": "shop/one"},
            description="0 operators in shop hold the Lease; it should be 1.",
        ),
    ),
    # The pod was replaced by another pod.
    Case(
        alert="FairleadOperatorLeaders",
        series={
            of_operator("fairlead_operator_leader", pod="a", job="shop/one"): "1+0x3 stale",
            of_operator("fairlead_operator_leader", pod="b", job="shop/one"): "_x5 1+0x7",
        },
        minute=12,
    ),
    # Two releases in one namespace, or one release that is scraped twice.
    Case(
        alert="FairleadOperatorLeaders",
        series={
            of_operator("fairlead_operator_leader", pod="a", job=job): "1+0x12"
            for job in ("shop/one", "shop/two")
        },
        minute=12,
    ),
    *pair(
        "FairleadReconcileFailing",
        16,
        {of_operator("fairlead_operator_queue_failing", kind="Topic", pod="a"): "3+0x16"},
        "The operator in shop reports that its last pass over 3 resources of kind Topic failed.",
        {"namespace": "shop", "kind": "Topic"},
        {of_operator("fairlead_operator_queue_failing", kind="Topic", pod="a"): "3+0x14 0 0"},
    ),
    *pair(
        "FairleadResourcesNotReady",
        16,
        {of_operator("fairlead_operator_resources_not_ready", kind="Cluster", pod="a"): "1+0x16"},
        "The operator in shop reports that 1 resources of kind Cluster have not been ready for 15 minutes.",
        {"namespace": "shop", "kind": "Cluster"},
        {of_operator("fairlead_operator_resources_not_ready", kind="Cluster", pod="a"): "1+0x10 0+0x6"},
    ),
    *pair(
        "FairleadEtcdQuorumLost",
        3,
        {
            labelled("etcd_server_has_leader", fairlead_component="etcd", pod=f"main-etcd-{each}"): "1 0 0 0"
            for each in (0, 1)
        },
        "The etcd of cluster main in shop has too few members left for a quorum.",
        WHERE,
        {
            labelled("etcd_server_has_leader", fairlead_component="etcd", pod="main-etcd-0"): "1+0x3",
            labelled("etcd_server_has_leader", fairlead_component="etcd", pod="main-etcd-1"): "1 0 0 0",
            'etcd_server_has_leader{job="kube-etcd"}': "0+0x3",
        },
    ),
    # All members of etcd are unavailable, which only the operator's metrics show.
    Case(
        alert="FairleadEtcdQuorumLost",
        series={condition("EtcdHealthy", "False", "QuorumLost"): "_ 1 1 1"},
        minute=3,
        fires=Firing(
            labels=WHERE,
            description="The etcd of cluster main in shop has too few members left for a quorum.",
        ),
    ),
    *pair(
        "FairleadEtcdUnhealthy",
        16,
        {condition("EtcdHealthy", "False", "MembersUnhealthy", pod=pod): "1+0x16" for pod in ("a", "b")},
        "The operator in ops reports that the etcd of Cluster main in shop has not been healthy for 15 minutes. "
        "The reason is MembersUnhealthy.",
        {"namespace": "ops", "resource_namespace": "shop", "resource": "main", "reason": "MembersUnhealthy"},
        {
            condition("EtcdHealthy", "True", "ChangingMembers"): "1+0x16",
            condition("EtcdHealthy", "Unknown", "External", resource="other"): "1+0x16",
            condition("EtcdHealthy", "False", "QuorumLost", resource="third"): "1+0x16",
        },
    ),
    *pair(
        "FairleadChangeBlocked",
        16,
        {condition("RollBlocked", "True", "PartitionsAtRisk"): "1+0x16"},
        "The operator in ops reports that Cluster main in shop has had the condition RollBlocked for 15 minutes. "
        "The reason is PartitionsAtRisk.",
        {
            "namespace": "ops",
            "resource_namespace": "shop",
            "resource": "main",
            "condition": "RollBlocked",
            "reason": "PartitionsAtRisk",
        },
        {
            condition("RollBlocked", "True", "PartitionsAtRisk"): "1+0x8 stale",
            condition("Warning", "True", "SingleBroker"): "1+0x16",
        },
    ),
    *pair(
        "FairleadEtcdBackupFailing",
        16,
        {of_backup("SnapshotOverdue"): "1+0x16"},
        "The operator in ops reports that EtcdBackup nightly in shop has made no snapshot when one was due. The reason "
        "is SnapshotOverdue.",
        {
            "namespace": "ops",
            "resource_namespace": "shop",
            "resource": "nightly",
            "reason": "SnapshotOverdue",
        },
        {of_backup("SnapshotOverdue"): "1+0x8 stale", of_backup("SnapshotPending"): "1+0x16"},
    ),
    *pair(
        "FairleadRebalanceFailing",
        16,
        {of_rebalance("BrokersNotFound"): "1+0x16"},
        "The operator in ops reports that Rebalance spread in shop has failed for 15 minutes. The reason is "
        "BrokersNotFound.",
        {
            "namespace": "ops",
            "resource_namespace": "shop",
            "resource": "spread",
            "reason": "BrokersNotFound",
        },
        {
            of_rebalance("BrokersNotFound"): "1+0x8 stale",
            of_rebalance("ProposalReady"): "1+0x16",
            of_rebalance("Rebalancing"): "1+0x16",
            of_rebalance("Stopped"): "1+0x16",
        },
    ),
    *pair(
        "FairleadRebalanceStalled",
        126,
        {partitions_left("spread"): "7+0x126"},
        "The operator in ops reports that Rebalance spread in shop has 7 partitions left, as many as two hours ago.",
        {"namespace": "ops", "resource_namespace": "shop", "resource": "spread"},
        {partitions_left("spread"): "7+0x60 6+0x66", partitions_left("young"): "_x60 7+0x66"},
    ),
    *pair(
        "FairleadOperatorWatchSilent",
        8,
        {of_operator("fairlead_operator_watch_age_seconds", pod="a"): "0+60x8"},
        "The watches of operator a in shop have shown no activity for 8m 0s.",
        {"namespace": "shop", "pod": "a"},
        {of_operator("fairlead_operator_watch_age_seconds", pod="a"): "20+0x8"},
    ),
    # The alert fires for three minutes, until the kubelet restarts the operator.
    Case(
        alert="FairleadOperatorWatchSilent",
        series={of_operator("fairlead_operator_watch_age_seconds", pod="a"): "20 80 140 2 2"},
        minute=2,
        fires=Firing(
            labels={"namespace": "shop", "pod": "a"},
            description="The watches of operator a in shop have shown no activity for 2m 20s.",
        ),
    ),
)
