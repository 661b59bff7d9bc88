"""Part of the catalogue of conditions: unreadable specs, warnings, and pauses."""

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

INVALID_SPEC: Final = ConditionType(
    ConditionName.INVALID_SPEC,
    Polarity.BAD_WHEN_TRUE,
    "The stored object passed the API server but cannot be read by this operator, as happens when the operator is "
    "older than the custom resource definitions, or when a definition was changed by hand. Nothing is changed.",
    (
        Reason(
            "Unreadable",
            ("True",),
            "A field has a value that this release does not know.",
            "Correct the field that the message names, or bring operator and definitions to one release.",
        ),
        Reason(
            "InvalidTemplate",
            ("True",),
            "A template cannot be merged into the pods that the operator draws.",
            "Correct the template that the message names.",
            CLUSTER_ONLY,
        ),
    ),
)

WARNING: Final = ConditionType(
    ConditionName.WARNING,
    Polarity.BAD_WHEN_TRUE,
    "Something in the resource is left out or is unwise; the rest is applied.",
    (
        Reason(
            "ForbiddenConfig",
            ("True",),
            "spec.config has keys that do not exist, are not supported yet or that the operator sets itself. "
            "They are left out.",
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
            "The API server refuses objects that the operator makes, or pods that their controllers make, as by a "
            "quota or for a template that is not valid. The brokers that run are left as they are.",
            "Read the refusal in the message and change the template, the quota or the namespace's labels.",
            CLUSTER_ONLY,
        ),
        Reason(
            "BrokersUnreachable",
            ("True",),
            "Brokers are ready, but none answers the operator. Kubernetes' objects are kept up; configuration, "
            "restarts and fewer brokers wait.",
            "See whether the operator may reach the data port of the brokers (network policies, listeners).",
            CLUSTER_ONLY,
        ),
        Reason(
            "SingleBroker",
            ("True",),
            "There is one broker: every restart of it is an interruption, and its pod may be evicted at any time.",
            "Nothing for a trial; three brokers for data that matters.",
            CLUSTER_ONLY,
        ),
        Reason(
            "FormatNotSupported",
            ("True",),
            "spec.formatVersion is newer than what the brokers' release writes. It is left out.",
            "Upgrade the brokers first, then raise formatVersion.",
            CLUSTER_ONLY,
        ),
        Reason(
            "SeveralWarnings",
            ("True",),
            "There is more than one warning; the message holds all of them.",
            "See the message.",
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
            "Raise spec.replicas or lower min.insync.replicas.",
            TOPIC_ONLY,
        ),
    ),
)

RECONCILIATION_PAUSED: Final = ConditionType(
    ConditionName.RECONCILIATION_PAUSED,
    Polarity.NEUTRAL,
    "The annotation fairlead.dev/paused keeps the operator from changing anything; observedGeneration stands still. "
    "Deleting the object still works.",
    (
        Reason(
            "Annotation",
            ("True",),
            "The object has the annotation fairlead.dev/paused.",
            "Remove the annotation when the work is to go on.",
        ),
    ),
)
