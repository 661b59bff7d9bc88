"""Part of the catalogue of conditions: whether an object is ready, and whether it is being changed."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.condition_definitions import (
    BACKUP_ONLY,
    CALLING,
    CLUSTER_ONLY,
    IN_A_CLUSTER,
    LINK_ONLY,
    MOVED,
    REBALANCE_ONLY,
    TOPIC_ONLY,
    USER_ONLY,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
    ResourceKind,
)

NOT_RECONCILED: Final = "NotReconciled"
NOT_RECONCILED_MESSAGE: Final = "no operator has reconciled this object yet"

READY: Final = ConditionType(
    ConditionName.READY,
    Polarity.GOOD_WHEN_TRUE,
    "The object is ready. A Cluster stays ready while brokers are restarted one at a time (shown by Progressing); "
    "a Topic is ready when the topic in the cluster matches the resource, and a Rebalance when its moves are finished.",
    (
        Reason(
            NOT_RECONCILED,
            ("Unknown",),
            "No operator has reconciled the object yet. This is the default of the custom resource definition.",
            "Wait a few seconds. If the status persists, check whether the operator runs and watches this namespace "
            "(setting FAIRLEAD_OPERATOR_NAMESPACES).",
        ),
        Reason(
            "Available",
            ("True",),
            "The object is ready and matches its spec.",
            "Nothing.",
            (ResourceKind.CLUSTER, ResourceKind.TOPIC, ResourceKind.USER, ResourceKind.LINK),
        ),
        Reason(
            "InvalidSpec",
            ("False",),
            "This operator cannot read the stored object and ignores it. See the condition InvalidSpec.",
            "Correct the field that the message names.",
        ),
        Reason(
            "Starting",
            ("False",),
            "The cluster has never been ready: its brokers or its etcd are still starting.",
            "Wait. If the status persists, check the pods with `kubectl describe pod`, and their events.",
            CLUSTER_ONLY,
        ),
        Reason(
            "BrokersNotReady",
            ("False",),
            "More brokers are missing than during a restart; partitions may have no leader.",
            "Check the pods that the message names, their events and their logs.",
            CLUSTER_ONLY,
        ),
        Reason(
            "PodsRefused",
            ("False",),
            "The API server refuses objects that the operator creates, or pods that their controllers create, for "
            "example because of a quota, Pod Security or an invalid template.",
            "Read the refusal in the message and change the template, the quota or the namespace's labels.",
            (ResourceKind.CLUSTER, ResourceKind.ETCD_BACKUP),
        ),
        Reason(
            "ClusterNotFound",
            ("Unknown", "False"),
            "The Cluster that clusterRef names does not exist. The operator does nothing until the Cluster "
            "exists.",
            "Create the Cluster, or delete the object and create it with another clusterRef, which cannot be changed.",
            IN_A_CLUSTER,
        ),
        Reason(
            "ClusterNotReady",
            ("Unknown", "False"),
            "The Cluster exists, but none of its brokers answers.",
            "Nothing for this object. See the conditions of the Cluster.",
            CALLING,
        ),
        Reason(
            "ClusterPaused",
            ("Unknown",),
            "The annotation fairlead.dev/paused pauses the Cluster and all objects that name it in clusterRef.",
            "Remove the annotation from the Cluster to resume reconciliation.",
            (*MOVED, ResourceKind.LINK),
        ),
        Reason(
            "NotAllowed",
            ("False",),
            "spec.security of the Cluster does not allow the namespace of the User to grant what its acls contain, or "
            "to set its quota. The User is not applied, and its earlier grants are withdrawn.",
            "Remove the grants or the quota that the message names, or extend spec.security.users of the Cluster.",
            USER_ONLY,
        ),
        Reason(
            "SecurityNotConfigured",
            ("False",),
            "The Cluster has no spec.security, so its brokers know neither tokens nor access rules of Users.",
            "Set spec.security of the Cluster.",
            USER_ONLY,
        ),
        Reason(
            "Conflict",
            ("False",),
            "The principal of the User already has a quota, from another User with the same service account or from "
            "another program. The quota of this User is not applied, unlike its access rules and its token.",
            "Remove spec.quota, or the other quota that the message names.",
            USER_ONLY,
        ),
        Reason(
            "SecretNotOurs",
            ("False",),
            "A Secret or ConfigMap with the name that the User or the Links of a Cluster need exists, and belongs to "
            "another program. The operator never overwrites this object.",
            "Delete or rename the object that the message names, or set spec.token.secretName of the User.",
            (ResourceKind.USER, ResourceKind.LINK),
        ),
        Reason(
            "NamespaceNotAllowed",
            ("False",),
            "The Topic and its Cluster are in different namespaces, and the Cluster does not list that namespace.",
            "Add the namespace to spec.topicNamespaces of the Cluster, or move the Topic.",
            TOPIC_ONLY,
        ),
        Reason(
            "ResourceConflict",
            ("False",),
            "Another Topic resource owns the topic with this name, because it claimed the topic first. For a "
            "Rebalance: another Rebalance moves partitions of the Cluster, and this Rebalance waits.",
            "Delete one of the two Topics. When the owner is deleted (deletionPolicy Retain keeps the data), the "
            "other Topic takes over. A waiting Rebalance continues automatically.",
            MOVED,
        ),
        Reason(
            "InvalidConfig",
            ("False",),
            "The cluster refuses a configuration key or its value; no other key of config is applied.",
            "Correct the key that the message names; the reference of configuration keys lists the allowed values.",
            TOPIC_ONLY,
        ),
        Reason(
            "InvalidTopicName",
            ("False",),
            "The topic's name is not allowed.",
            "Delete the Topic and create it with a different spec.name, which cannot be changed.",
            TOPIC_ONLY,
        ),
        Reason(
            "PartitionsNotReducible",
            ("False",),
            "The topic has more partitions than the resource specifies, for example because the topic was adopted.",
            "Set spec.partitions to at least the number in the message; partitions are never removed.",
            TOPIC_ONLY,
        ),
        Reason(
            "ReplicationFactorTooLarge",
            ("False",),
            "The resource specifies more replicas than there are brokers that may have a replica.",
            "Decrease spec.replicas, add brokers, or uncordon a broker.",
            TOPIC_ONLY,
        ),
        Reason(
            "Reassigning",
            ("False",),
            "Replicas are being moved until every partition has the number of replicas that the resource specifies.",
            "Wait; status.reassignment shows the number of remaining partitions.",
            TOPIC_ONLY,
        ),
        Reason(
            "Deleting",
            ("False",),
            "The resource is being deleted, with its topic if deletionPolicy is Delete, or its link, and the moves of "
            "a Rebalance are being cancelled; the brokers have not answered yet.",
            "Nothing.",
            CALLING,
        ),
        Reason(
            "BrokersRefused",
            ("False",),
            "The cluster refused the change for a different reason.",
            "Read the problem in the message; the reference has a page for its code.",
            MOVED,
        ),
        Reason(
            "BrokersNotFound",
            ("False",),
            "A broker of spec.brokers does not exist, or accepts no replicas.",
            "Wait until the broker has started, uncordon the broker, or create another Rebalance.",
            REBALANCE_ONLY,
        ),
        Reason(
            "NoBrokerLeft",
            ("False",),
            "Partitions cannot move off the brokers of spec.brokers, since no other broker can take a replica.",
            "Add or uncordon brokers, or lower the number of replicas of the topics that the message names.",
            REBALANCE_ONLY,
        ),
        Reason(
            "ProposalReady",
            ("False",),
            "The moves in status.proposal wait for approval.",
            "Read status.proposal, and set the annotation fairlead.dev/rebalance to `approve`, or to `refresh` for "
            "another proposal.",
            REBALANCE_ONLY,
        ),
        Reason(
            "Rebalancing",
            ("False",),
            "The moves of the proposal are carried out; status.progress shows the number of moved partitions.",
            "Wait. To cancel the moves, set the annotation fairlead.dev/rebalance to `stop`, or delete the Rebalance.",
            REBALANCE_ONLY,
        ),
        Reason(
            "Stopped",
            ("False",),
            "The moves were cancelled by the annotation fairlead.dev/rebalance; finished moves are not undone.",
            "Delete the Rebalance, or set the annotation to `refresh` for another proposal.",
            REBALANCE_ONLY,
        ),
        Reason(
            "OwnedByLink",
            ("False",),
            "The topic is a mirror of a Link, which alone changes the topic. The Topic changes nothing.",
            "Nothing. The Topic takes over once the mirror is promoted.",
            TOPIC_ONLY,
        ),
        Reason(
            "SourceUnreachable",
            ("False",),
            "The source of the link does not answer, or refuses the link's credentials. Mirrors keep their records.",
            "Read the message. Check spec.source, the Secret with the credentials, and the network policy of the "
            "Cluster. Changed credentials reach the brokers within two minutes.",
            LINK_ONLY,
        ),
        Reason(
            "SourceChanged",
            ("False",),
            "Another cluster answers at spec.source.bootstrap. Nothing is copied from it.",
            "Correct the addresses, or create another Link.",
            LINK_ONLY,
        ),
        Reason(
            "CredentialsMissing",
            ("False",),
            "A Secret that spec.source names does not exist, or lacks its keys. A new link waits for the Secret.",
            "Create the Secret with the keys that the message names.",
            LINK_ONLY,
        ),
        Reason(
            "LinkRefused",
            ("False",),
            "The cluster refuses the link, for example because of a configuration key, or because the source is the "
            "Cluster itself.",
            "Read the problem in the message; the reference has a page for its code.",
            LINK_ONLY,
        ),
        Reason(
            "LinkConflict",
            ("False",),
            "The cluster has a link with this name and another prefix, which was not created by the Link.",
            "Delete the other link, or create the Link with another name.",
            LINK_ONLY,
        ),
        Reason(
            "MirrorsStopped",
            ("False",),
            "Partitions of mirrors copy nothing: a policy of the Link stops them, or the topic was deleted or is "
            "damaged at the source.",
            "Read the mirrors and reasons in the message. `fairlead link acknowledge` accepts the loss, and mirrors of "
            "deleted topics can be promoted or deleted.",
            LINK_ONLY,
        ),
        Reason(
            "LinkInUse",
            ("False",),
            "The Link is being deleted, and topics of the Cluster are still mirrors of the link.",
            "Promote the mirrors that the message names, with spec.promote or `fairlead link promote`, or delete them.",
            LINK_ONLY,
        ),
        Reason(
            "Completed",
            ("True",),
            "Every move of the Rebalance is finished, or no move was necessary. An EtcdBackup without a schedule has "
            "made its snapshot.",
            "Nothing. The object can be deleted. The snapshot of an EtcdBackup stays on the volume.",
            (ResourceKind.REBALANCE, ResourceKind.ETCD_BACKUP),
        ),
        Reason(
            "Scheduled",
            ("True",),
            "The newest scheduled snapshot has been made; status.lastSnapshot describes it.",
            "Nothing.",
            BACKUP_ONLY,
        ),
        Reason(
            "SnapshotPending",
            ("False",),
            "No snapshot has been made yet.",
            "Wait for the first scheduled time, or for the pod of the Job.",
            BACKUP_ONLY,
        ),
        Reason(
            "SnapshotFailed",
            ("False",),
            "The last attempt at a snapshot failed; earlier snapshots are kept.",
            "Read the reason in the message: for example, the volume is full, or etcd does not answer.",
            BACKUP_ONLY,
        ),
        Reason(
            "SnapshotOverdue",
            ("False",),
            "A snapshot is at least 15 minutes late, for example because its pod cannot start.",
            "Check the pod of the Job, and the claim that spec.claimName names.",
            BACKUP_ONLY,
        ),
        Reason(
            "ObjectsRefused",
            ("False",),
            "The API server refuses the CronJob or the Job, for example because of its schedule or a quota.",
            "Read the refusal in the message, and correct the schedule or the quota.",
            BACKUP_ONLY,
        ),
        Reason(
            "EtcdExternal",
            ("False",),
            "The Cluster uses an external etcd, which the operator does not back up.",
            "Back up the external etcd with its own tools, and delete the EtcdBackup.",
            BACKUP_ONLY,
        ),
    ),
)

PROGRESSING: Final = ConditionType(
    ConditionName.PROGRESSING,
    Polarity.NEUTRAL,
    "The operator is applying a change that is not complete yet.",
    (
        Reason("UpToDate", ("False",), "No change is in progress.", "Nothing."),
        Reason("Creating", ("True",), "Objects are created for the first time.", "Nothing.", CLUSTER_ONLY),
        Reason(
            "Rolling",
            ("True",),
            "Brokers are restarted one at a time; status.roll names the current broker.",
            "Nothing.",
            CLUSTER_ONLY,
        ),
        Reason("ScalingUp", ("True",), "Brokers are added.", "Nothing.", CLUSTER_ONLY),
        Reason(
            "ScalingDown",
            ("True",),
            "A broker is drained before it is removed; status.scaleDown shows the number of partitions left on it.",
            "Nothing. Increasing replicas again cancels the removal.",
            CLUSTER_ONLY,
        ),
        Reason("ResizingStorage", ("True",), "Volumes are being enlarged.", "Nothing.", CLUSTER_ONLY),
        Reason(
            "ChangingEtcd",
            ("True",),
            "A member of etcd joins, leaves, is replaced or is restarted.",
            "Nothing.",
            CLUSTER_ONLY,
        ),
        Reason(
            "ReplacingCertificates",
            ("True",),
            "Brokers load a new certificate or a new authority. The replacement of an authority waits twice for "
            "clients, each time for spec.security.tls.clientOverlap.",
            "Nothing. The condition CertificatesReady shows the current step.",
            CLUSTER_ONLY,
        ),
        Reason(
            "Reassigning",
            ("True",),
            "Replicas are being moved; status.reassignment of a Topic and status.progress of a Rebalance show the "
            "progress.",
            "Nothing.",
            MOVED,
        ),
    ),
    (ResourceKind.CLUSTER, *MOVED),
)
