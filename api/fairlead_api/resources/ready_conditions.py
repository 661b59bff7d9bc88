"""Part of the catalogue of conditions: whether an object serves, and whether it is being changed."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.condition_definitions import (
    CLUSTER_ONLY,
    TOPIC_ONLY,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
)

NOT_RECONCILED: Final = "NotReconciled"
NOT_RECONCILED_MESSAGE: Final = "no operator has looked at this object yet"

READY: Final = ConditionType(
    ConditionName.READY,
    Polarity.GOOD_WHEN_TRUE,
    "The object serves. A Cluster stays ready while brokers are restarted one at a time (then Progressing says so); "
    "a Topic is ready when the cluster has it as its resource says.",
    (
        Reason(
            NOT_RECONCILED,
            ("Unknown",),
            "No operator has looked at the object yet. This is the default of the custom resource definition.",
            "Wait a few seconds. If it stays, see whether the operator runs and watches this namespace "
            "(setting FAIRLEAD_OPERATOR_NAMESPACES).",
        ),
        Reason("Available", ("True",), "It serves as the resource says.", "Nothing."),
        Reason(
            "InvalidSpec",
            ("False",),
            "This operator cannot read the stored object and acts on nothing of it. See the condition InvalidSpec.",
            "Correct the field that the message names.",
        ),
        Reason(
            "Starting",
            ("False",),
            "The cluster has never been ready: its brokers or its etcd are still coming up.",
            "Wait. If it stays, look at the pods: `kubectl describe pod`, and at their events.",
            CLUSTER_ONLY,
        ),
        Reason(
            "BrokersNotReady",
            ("False",),
            "More brokers are missing than one restart explains; partitions may be without leader.",
            "Look at the pods that the message names, at their events and at their logs.",
            CLUSTER_ONLY,
        ),
        Reason(
            "PodsRefused",
            ("False",),
            "The API server refuses objects that the operator makes, or pods that their controllers make, for example "
            "by a quota, by Pod Security or because a template is not valid.",
            "Read the refusal in the message and change the template, the quota or the namespace's labels.",
            CLUSTER_ONLY,
        ),
        Reason(
            "ClusterNotFound",
            ("Unknown", "False"),
            "The Cluster that clusterRef names does not exist. The topic is made as soon as it appears.",
            "Make the Cluster, or delete the Topic and create it with the right clusterRef, which cannot be changed.",
            TOPIC_ONLY,
        ),
        Reason(
            "ClusterNotReady",
            ("Unknown", "False"),
            "The Cluster exists, but none of its brokers answers.",
            "Nothing about the Topic. See the conditions of the Cluster.",
            TOPIC_ONLY,
        ),
        Reason(
            "ClusterPaused",
            ("Unknown",),
            "The Cluster is paused by the annotation fairlead.dev/paused, and its Topics with it.",
            "Remove the annotation from the Cluster when its work is to go on.",
            TOPIC_ONLY,
        ),
        Reason(
            "NamespaceNotAllowed",
            ("False",),
            "The Topic is in another namespace than its Cluster, and the Cluster does not list that namespace.",
            "Add the namespace to spec.topicNamespaces of the Cluster, or move the Topic.",
            TOPIC_ONLY,
        ),
        Reason(
            "ResourceConflict",
            ("False",),
            "Another Topic resource owns the topic of this name. The first one that claimed it keeps it.",
            "Delete one of the two. When the owner goes (deletionPolicy Retain keeps the data), this one takes over.",
            TOPIC_ONLY,
        ),
        Reason(
            "InvalidConfig",
            ("False",),
            "The cluster refuses a configuration key or its value; no other key of config is applied either.",
            "Correct the key that the message names; the reference of configuration keys lists what is allowed.",
            TOPIC_ONLY,
        ),
        Reason(
            "InvalidTopicName",
            ("False",),
            "The topic's name is not allowed.",
            "Delete the Topic and create it with another spec.name, which cannot be changed.",
            TOPIC_ONLY,
        ),
        Reason(
            "PartitionsNotReducible",
            ("False",),
            "The topic has more partitions than the resource asks for, for example because it was adopted.",
            "Set spec.partitions to at least the number in the message; partitions are never taken away.",
            TOPIC_ONLY,
        ),
        Reason(
            "ReplicationFactorTooLarge",
            ("False",),
            "The resource asks for more replicas than there are brokers that may hold one.",
            "Lower spec.replicas, add brokers, or take back the cordon of one.",
            TOPIC_ONLY,
        ),
        Reason(
            "Reassigning",
            ("False",),
            "Replicas are being moved until every partition has as many as the resource asks for.",
            "Wait; status.reassignment counts the partitions that are left.",
            TOPIC_ONLY,
        ),
        Reason(
            "Deleting",
            ("False",),
            "The resource is being deleted, and its topic if deletionPolicy says so; brokers do not answer yet.",
            "Nothing.",
            TOPIC_ONLY,
        ),
        Reason(
            "BrokersRefused",
            ("False",),
            "The cluster refused the change for a reason that no other word here names.",
            "Read the problem in the message; its code has a page among the problems.",
            TOPIC_ONLY,
        ),
    ),
)

PROGRESSING: Final = ConditionType(
    ConditionName.PROGRESSING,
    Polarity.NEUTRAL,
    "The operator is changing something and is not done.",
    (
        Reason("UpToDate", ("False",), "Nothing is under way.", "Nothing."),
        Reason("Creating", ("True",), "Objects are made for the first time.", "Nothing.", CLUSTER_ONLY),
        Reason(
            "Rolling",
            ("True",),
            "Brokers are restarted one at a time; status.roll names the one.",
            "Nothing.",
            CLUSTER_ONLY,
        ),
        Reason("ScalingUp", ("True",), "Brokers are added.", "Nothing.", CLUSTER_ONLY),
        Reason(
            "ScalingDown",
            ("True",),
            "A broker is emptied before it goes; status.scaleDown counts the partitions that are left on it.",
            "Nothing. Raising replicas again takes it back.",
            CLUSTER_ONLY,
        ),
        Reason("ResizingStorage", ("True",), "Volumes are being made larger.", "Nothing.", CLUSTER_ONLY),
        Reason(
            "ChangingEtcd",
            ("True",),
            "A member of etcd joins, leaves, is replaced or is restarted.",
            "Nothing.",
            CLUSTER_ONLY,
        ),
        Reason(
            "Reassigning",
            ("True",),
            "Replicas of the topic move; status.reassignment counts them.",
            "Nothing.",
            TOPIC_ONLY,
        ),
    ),
)
