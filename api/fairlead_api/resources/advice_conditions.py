"""Part of the catalogue of conditions: unreadable specs, warnings, and pauses."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.condition_definitions import (
    CLUSTER_ONLY,
    REBALANCE_ONLY,
    TOPIC_ONLY,
    USER_ONLY,
    WITHOUT_BACKUPS,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
)

INVALID_SPEC: Final = ConditionType(
    ConditionName.INVALID_SPEC,
    Polarity.BAD_WHEN_TRUE,
    "The stored object passed the API server but cannot be read by this operator, for example because the operator is "
    "older than the custom resource definitions, or because a definition was changed by hand. The operator changes "
    "nothing.",
    (
        Reason(
            "Unreadable",
            ("True",),
            "A field has a value that this release does not support.",
            "Correct the field that the message names, or install operator and definitions of the same release.",
        ),
        Reason(
            "InvalidTemplate",
            ("True",),
            "A template cannot be merged into the pods that the operator creates.",
            "Correct the template that the message names.",
            CLUSTER_ONLY,
        ),
    ),
)

WARNING: Final = ConditionType(
    ConditionName.WARNING,
    Polarity.BAD_WHEN_TRUE,
    "A part of the resource is ignored or not recommended; the rest is applied.",
    (
        Reason(
            "ForbiddenConfig",
            ("True",),
            "spec.config has keys that do not exist, that are not supported yet or that the operator sets itself. "
            "They are ignored.",
            "Remove the keys that the message names, or correct them.",
            CLUSTER_ONLY,
        ),
        Reason(
            "InvalidConfigValue",
            ("True",),
            "The brokers refuse the value of a configuration key.",
            "Correct the key that the message names.",
            CLUSTER_ONLY,
        ),
        Reason(
            "ObjectsRefused",
            ("True",),
            "The API server refuses objects that the operator creates, or pods that their controllers create, for "
            "example because of a quota or an invalid template. Running brokers are not changed.",
            "Read the refusal in the message and change the template, the quota or the namespace's labels.",
            CLUSTER_ONLY,
        ),
        Reason(
            "QuotaConflict",
            ("True",),
            "Another program has set a quota for the Users of a namespace, so the `quotaMax.shared` of this namespace "
            "does not apply.",
            "Remove the quota of the subject that the message names, or remove `quotaMax.shared` of the namespace.",
            CLUSTER_ONLY,
        ),
        Reason(
            "BrokersUnreachable",
            ("True",),
            "Brokers are ready, but no broker answers the operator. The operator still maintains the Kubernetes "
            "objects, but postpones configuration changes, restarts and the removal of brokers.",
            "Check whether the operator can reach the data port of the brokers (network policies, listeners).",
            CLUSTER_ONLY,
        ),
        Reason(
            "PodFailing",
            ("True",),
            "Pods of brokers do not start, and no roll is in progress. During a roll, the condition RollBlocked has "
            "the reason PodFailing instead.",
            "Check the pods that the message names, then correct the Cluster: a failing pod is replaced immediately.",
            CLUSTER_ONLY,
        ),
        Reason(
            "SingleBroker",
            ("True",),
            "The cluster has one broker: every restart is an interruption, and its pod may be evicted at any time.",
            "Nothing for a trial cluster; use three brokers for important data.",
            CLUSTER_ONLY,
        ),
        Reason(
            "SecurityOpen",
            ("True",),
            "The Cluster has no spec.security, or its mode is Open: the brokers do not ask clients for a token.",
            "Nothing for a trial cluster. For any other cluster, follow the steps from an open cluster to a closed one "
            "in the security guide.",
            CLUSTER_ONLY,
        ),
        Reason(
            "NoExternalAddress",
            ("True",),
            "The external Service has no load balancer or node port yet, so external clients cannot reach any broker.",
            "Wait for the cloud provider, and look at the Events of the Service: a Kubernetes cluster without a "
            "provider of load balancers never assigns one, and needs type nodeport.",
            CLUSTER_ONLY,
        ),
        Reason(
            "RouteKindMissing",
            ("True",),
            "The API server does not have the kind of route that spec.listeners.data.route names, so the operator "
            "cannot create it.",
            "Install the definitions of the Gateway API (for TLSRoute at least release 1.5), or use kind Ingress.",
            CLUSTER_ONLY,
        ),
        Reason(
            "ConsoleNotReady",
            ("True",),
            "The console of spec.console has had no ready pod for two minutes. The brokers are not affected.",
            "Check the pod of the console with `kubectl describe`, and its log: it may lack resources, an image or a "
            "Secret that spec.console names.",
            CLUSTER_ONLY,
        ),
        Reason(
            "ClientsOutsideCannotFollow",
            ("True",),
            "Brokers have no listener for external clients, because they run an older release or were started by an "
            "older operator, and send these clients to addresses inside the Kubernetes cluster.",
            "Upgrade the brokers, or restart them with the annotation fairlead.dev/restart; until then, external "
            "clients must set one_address.",
            CLUSTER_ONLY,
        ),
        Reason(
            "FormatNotSupported",
            ("True",),
            "spec.formatVersion is newer than the format in which the brokers store data (status.formatVersion), "
            "and has no effect yet.",
            "Wait until all brokers run a release that supports the format: the operator then raises it. Or set "
            "formatVersion to status.formatVersion, which is allowed because no data has the newer format.",
            CLUSTER_ONLY,
        ),
        Reason(
            "SeveralWarnings",
            ("True",),
            "The resource has several warnings; the message contains all of them.",
            "Read the message.",
            WITHOUT_BACKUPS,
        ),
        Reason(
            "UnmanagedKeys",
            ("True",),
            "Keys of unmanagedConfig do not exist.",
            "Correct the keys that the message names.",
            TOPIC_ONLY,
        ),
        Reason(
            "MinInsyncReplicasTooLarge",
            ("True",),
            "The topic has fewer replicas than its min.insync.replicas: writes with acks=all are refused.",
            "Increase spec.replicas or decrease min.insync.replicas.",
            TOPIC_ONLY,
        ),
        Reason(
            "ProposalOutdated",
            ("True",),
            "Partitions of the proposal were moved, created again or deleted since the proposal was computed; their "
            "moves are skipped.",
            "Set the annotation fairlead.dev/rebalance to `refresh` if the message names many partitions.",
            REBALANCE_ONLY,
        ),
        Reason(
            "ModeIsOpen",
            ("True",),
            "The Cluster has the security mode Open: the access rules of the User have no effect yet.",
            "Set spec.security.mode of the Cluster to Observe, and later to Enforce.",
            USER_ONLY,
        ),
        Reason(
            "ExpiresSoon",
            ("True",),
            "The token in the User's Secret ends soon, and the operator has not replaced it in time.",
            "Check whether the brokers answer the operator; see the conditions of the Cluster and the operator's log.",
            USER_ONLY,
        ),
        Reason(
            "UnknownAnnotation",
            ("True",),
            "The annotation fairlead.dev/rebalance has a value without a meaning in this state.",
            "Set the annotation to `approve`, `refresh` or `stop`, or remove it.",
            REBALANCE_ONLY,
        ),
    ),
    WITHOUT_BACKUPS,
)

RECONCILIATION_PAUSED: Final = ConditionType(
    ConditionName.RECONCILIATION_PAUSED,
    Polarity.NEUTRAL,
    "The annotation fairlead.dev/paused prevents the operator from changing anything; observedGeneration is not "
    "updated. The object can still be deleted.",
    (
        Reason(
            "Annotation",
            ("True",),
            "The object has the annotation fairlead.dev/paused.",
            "Remove the annotation to resume reconciliation.",
        ),
    ),
)
