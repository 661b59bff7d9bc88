"""Part of the catalogue of conditions: blocked changes of a Cluster, and the health of its etcd."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.condition_definitions import (
    CLUSTER_ONLY,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
)

ROLL_BLOCKED: Final = ConditionType(
    ConditionName.ROLL_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "Brokers are to be restarted, but the next one may not be yet. Everything else goes on.",
    (
        Reason(
            "PartitionsAtRisk",
            ("True",),
            "A restart would leave partitions with fewer in-sync replicas than min.insync.replicas.",
            "Bring back the replicas that the message names. The roll goes on by itself.",
        ),
        Reason(
            "BrokersNotReady",
            ("True",),
            "Another broker is not ready, or has not caught up since its own restart.",
            "See to the broker that the message names.",
        ),
        Reason(
            "BrokersUnreachable",
            ("True",),
            "No broker answers the question whether one may be restarted.",
            "See whether the operator may reach the data port of the brokers (network policies, listeners).",
        ),
        Reason(
            "PermitHeld",
            ("True",),
            "The cluster-wide permit to restart is held by another restart, for example of a drained node.",
            "Wait; an unused permit ends after five minutes.",
        ),
        Reason(
            "RestartsSuspended",
            ("True",),
            "The annotation fairlead.dev/no-restarts keeps the operator from restarting brokers.",
            "Remove the annotation when restarts are welcome.",
        ),
        Reason(
            "PodFailing",
            ("True",),
            "A restarted broker does not come up with the newest template; no other is restarted.",
            "Look at the pod that the message names, then correct the Cluster: a failing pod is replaced at once.",
        ),
    ),
    CLUSTER_ONLY,
)

SCALE_DOWN_BLOCKED: Final = ConditionType(
    ConditionName.SCALE_DOWN_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "Fewer brokers are asked for than the data allows; the number stays as it is. Everything else goes on.",
    (
        Reason(
            "ReplicationFactor",
            ("True",),
            "A topic has more replicas than there would be brokers.",
            "Lower the replicas of the topics that the message names, or raise the brokers again.",
        ),
        Reason(
            "MinInSyncReplicas",
            ("True",),
            "With so few brokers no restart would be possible without stopping writes: there have to be more "
            "than min.insync.replicas of every topic.",
            "Lower min.insync.replicas of the topics that the message names, or raise the brokers again.",
        ),
        Reason(
            "DrainStuck",
            ("True",),
            "Replicas cannot leave the broker, because no other one may take them.",
            "See the message of the problem that the brokers answered; free disks or add brokers.",
        ),
        Reason(
            "BrokersUnreachable",
            ("True",),
            "No broker answers, so that nothing can be said about what the last one holds.",
            "Wait until brokers answer, or see whether the operator may reach them.",
        ),
    ),
    CLUSTER_ONLY,
)

STORAGE_BLOCKED: Final = ConditionType(
    ConditionName.STORAGE_BLOCKED,
    Polarity.BAD_WHEN_TRUE,
    "Volumes are to be made larger, but cannot be. Brokers go on with the volumes that they have.",
    (
        Reason(
            "ExpansionNotAllowed",
            ("True",),
            "The storage class does not allow expansion.",
            "Set allowVolumeExpansion on the storage class if its driver can do it, or add a pool of another class and "
            "empty this one.",
        ),
        Reason(
            "ExpansionRefused",
            ("True",),
            "The API server or the storage driver refused a claim's new size.",
            "Read the refusal in the message.",
        ),
    ),
    CLUSTER_ONLY,
)

ETCD_HEALTHY: Final = ConditionType(
    ConditionName.ETCD_HEALTHY,
    Polarity.GOOD_WHEN_TRUE,
    "The etcd that holds the cluster's coordination answers and has a quorum.",
    (
        Reason("Healthy", ("True",), "Every member answers.", "Nothing."),
        Reason(
            "External",
            ("Unknown", "True"),
            "The etcd is not the operator's: only its endpoints are asked for their health.",
            "Nothing.",
        ),
        Reason("Starting", ("False", "Unknown"), "Members are coming up for the first time.", "Wait."),
        Reason(
            "MembersUnhealthy",
            ("False",),
            "A member does not answer or has raised an alarm, but there is a quorum: nothing is lost. Where one does "
            "not answer, a second failure would stop writes of coordination; where its store is full (`NOSPACE`), "
            "they have stopped.",
            "Look at the pod of the member that the message names; enlarge the volumes where stores are full.",
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
            "The operator restarts one member, which status.etcd.restart names. True: the other members are a "
            "majority and continue. False: it is the only member, and etcd is away until it is back.",
            "Nothing. A member that is not back after five minutes counts as unhealthy.",
        ),
        Reason(
            "MemberLost",
            ("False",),
            "A member lost its volume. It is removed from etcd and joins again as a learner.",
            "Wait.",
        ),
        Reason(
            "QuorumLost",
            ("False",),
            "More than half of the members are gone. Brokers serve what they can without coordination; the operator "
            "changes nothing, because any change could lose data.",
            "Bring back the members' pods and volumes. If the volumes are gone for good, restore a snapshot of etcd.",
        ),
        Reason(
            "Unreachable",
            ("Unknown", "False"),
            "The operator cannot ask etcd.",
            "See whether the operator may reach the client port of etcd (network policies, secretName).",
        ),
    ),
    CLUSTER_ONLY,
)
