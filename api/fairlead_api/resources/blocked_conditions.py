"""Part of the catalogue of conditions: blocked changes of a Cluster, the health of its etcd, and parts of a Link."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.condition_definitions import (
    CLUSTER_ONLY,
    LINK_ONLY,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
)

ROLL_BLOCKED: Final = ConditionType(
    ConditionName.ROLL_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "Brokers must be restarted, but the restart of the next broker is not allowed yet. Other work continues.",
    (
        Reason(
            "PartitionsAtRisk",
            ("True",),
            "A restart would leave partitions with fewer in-sync replicas than min.insync.replicas.",
            "Restore the replicas that the message names. The roll then continues automatically.",
        ),
        Reason(
            "BrokersNotReady",
            ("True",),
            "Another broker is not ready, or has not caught up since its own restart.",
            "Check the broker that the message names.",
        ),
        Reason(
            "BrokersUnreachable",
            ("True",),
            "No broker answers the operator's request for the restart permit.",
            "Check whether the operator can reach the data port of the brokers (network policies, listeners).",
        ),
        Reason(
            "PermitHeld",
            ("True",),
            "Another restart, for example of a drained node, has the cluster-wide restart permit.",
            "Wait; an unused permit expires after five minutes.",
        ),
        Reason(
            "RestartsSuspended",
            ("True",),
            "The annotation fairlead.dev/no-restarts prevents the operator from restarting brokers.",
            "Remove the annotation to allow restarts.",
        ),
        Reason(
            "PodFailing",
            ("True",),
            "A restarted broker does not start with the newest template; no other broker is restarted.",
            "Check the pod that the message names, then correct the Cluster: a failing pod is replaced immediately.",
        ),
    ),
    CLUSTER_ONLY,
)

SCALE_DOWN_BLOCKED: Final = ConditionType(
    ConditionName.SCALE_DOWN_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "The resource specifies fewer brokers than the data allows; no broker is removed. Other work continues.",
    (
        Reason(
            "ReplicationFactor",
            ("True",),
            "A topic has more replicas than the number of remaining brokers.",
            "Decrease the replicas of the topics that the message names, or add brokers again.",
        ),
        Reason(
            "MinInSyncReplicas",
            ("True",),
            "With the remaining brokers, every restart would stop writes: the number of brokers must be greater than "
            "min.insync.replicas of every topic.",
            "Decrease min.insync.replicas of the topics that the message names, or add brokers again.",
        ),
        Reason(
            "DrainStuck",
            ("True",),
            "Replicas cannot be moved away from the broker, because no other broker can take them.",
            "Read the problem that the brokers report, in the message; free disk space or add brokers.",
        ),
        Reason(
            "BrokersUnreachable",
            ("True",),
            "No broker answers, so the operator does not know the replicas of the broker to be removed.",
            "Wait until brokers answer, or check whether the operator can reach them.",
        ),
    ),
    CLUSTER_ONLY,
)

STORAGE_BLOCKED: Final = ConditionType(
    ConditionName.STORAGE_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "Volumes must be enlarged, but cannot be. Brokers continue with their existing volumes.",
    (
        Reason(
            "ExpansionNotAllowed",
            ("True",),
            "The storage class does not allow expansion.",
            "Set allowVolumeExpansion on the storage class if its driver supports it, or add a pool with another class "
            "and scale this pool to 0.",
        ),
        Reason(
            "ExpansionRefused",
            ("True",),
            "The API server or the storage driver refused the new size of a claim.",
            "Read the refusal in the message.",
        ),
    ),
    CLUSTER_ONLY,
)

ETCD_HEALTHY: Final = ConditionType(
    ConditionName.ETCD_HEALTHY,
    Polarity.GOOD_WHEN_TRUE,
    "The etcd cluster that stores the coordination data answers and has a quorum.",
    (
        Reason("Healthy", ("True",), "Every member answers.", "Nothing."),
        Reason(
            "External",
            ("Unknown", "True"),
            "The operator does not run this etcd and only checks the health of its endpoints.",
            "Nothing.",
        ),
        Reason("Starting", ("False", "Unknown"), "Members are starting for the first time.", "Wait."),
        Reason(
            "MembersUnhealthy",
            ("False",),
            "A member does not answer or has raised an alarm, but etcd has a quorum, and no data is lost. If a member "
            "does not answer, a second failure would stop writes of coordination data; if a store is full (`NOSPACE`), "
            "writes have already stopped.",
            "Check the pod of the member that the message names; enlarge the volumes of full stores.",
        ),
        Reason(
            "ChangingMembers",
            ("True", "False"),
            "A member joins as a learner, is promoted, leaves or is replaced.",
            "Wait.",
        ),
        Reason(
            "RestartingMember",
            ("True", "False"),
            "The operator is restarting the member named in status.etcd.restart. The status is True if the other "
            "members are a majority and continue, and False if etcd has no other member and is unavailable until the "
            "member has restarted.",
            "Nothing. A member whose restart takes longer than five minutes counts as unhealthy.",
        ),
        Reason(
            "MemberLost",
            ("False",),
            "A member lost its volume. The operator removes the member from etcd, and it joins again as a learner.",
            "Wait.",
        ),
        Reason(
            "QuorumLost",
            ("False",),
            "Too few members are left for a quorum. Brokers serve requests that need no coordination; the operator "
            "changes nothing, because any change could lose data.",
            "Restore the members' pods and volumes. If the volumes are permanently lost, restore a snapshot of etcd.",
        ),
        Reason(
            "Unreachable",
            ("Unknown", "False"),
            "The operator cannot reach etcd.",
            "Check whether the operator can reach the client port of etcd (network policies, secretName).",
        ),
    ),
    CLUSTER_ONLY,
)

SOURCE_REACHABLE: Final = ConditionType(
    ConditionName.SOURCE_REACHABLE,
    Polarity.GOOD_WHEN_TRUE,
    "Whether the source of the link answers, and accepts the credentials of the link.",
    (
        Reason("Reachable", ("True",), "The source answers.", "Nothing."),
        Reason(
            "Unreachable",
            ("False",),
            "The source does not answer, refuses the credentials, or is another cluster.",
            "Read the message, and see the reason of the condition Ready.",
        ),
        Reason(
            "NotAsked",
            ("Unknown",),
            "The link is paused or does not exist yet, or no broker of the Cluster answers.",
            "Nothing for a paused link. Otherwise see the condition Ready.",
        ),
    ),
    LINK_ONLY,
)

TOPICS_BLOCKED: Final = ConditionType(
    ConditionName.TOPICS_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "Topics of the source cannot be mirrored. Other topics are mirrored.",
    (
        Reason(
            "TopicsBlocked",
            ("True",),
            "The name or the id of a topic is taken, the topic was deleted in the Cluster less than 14 days ago, or "
            "the Cluster cannot create the mirror. Topics that come from the Cluster itself are not counted.",
            "Read the topics and reasons in the message: exclude the topics, delete the local topics, or "
            "adopt the topics with `fairlead link adopt`.",
        ),
    ),
    LINK_ONLY,
)

GAP: Final = ConditionType(
    ConditionName.GAP,
    Polarity.BAD_WHEN_TRUE,
    "Mirrors lack records of the source, which it had deleted before they were copied, or lost in an unclean election.",
    (
        Reason(
            "RecordsMissing",
            ("True",),
            "The source deleted records by retention before they were copied, or lost records in an unclean election, "
            "after which the mirrors dropped them. Other records are copied.",
            "Read the offsets in the message. After a check of the consumers, accept the gaps with "
            "`fairlead link acknowledge`.",
        ),
    ),
    LINK_ONLY,
)

PROMOTED: Final = ConditionType(
    ConditionName.PROMOTED,
    Polarity.NEUTRAL,
    "Whether the mirrors that spec.promote names accept records. The condition is present while spec.promote is.",
    (
        Reason("AllPromoted", ("True",), "No mirror is left that spec.promote names.", "Nothing."),
        Reason(
            "Promoting",
            ("False",),
            "Mirrors are being promoted. A planned promotion waits for the source.",
            "Wait. If the source does not return, set spec.promote.mode to Failover.",
        ),
    ),
    LINK_ONLY,
)
