"""Part of the catalogue of conditions: the certificates of a Cluster."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.condition_definitions import (
    CLUSTER_ONLY,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
)

CERTIFICATES_READY: Final = ConditionType(
    ConditionName.CERTIFICATES_READY,
    Polarity.GOOD_WHEN_TRUE,
    "Whether the brokers use the certificates of the operator's own authority. The condition is present for Clusters "
    "with spec.security.",
    (
        Reason("Current", ("True",), "Every broker has loaded the current certificate.", "Nothing."),
        Reason(
            "Replacing",
            ("True",),
            "The authority is being replaced. The message names the condition for the next phase.",
            "Nothing, unless the message names a broker that does not load its files.",
        ),
        Reason(
            "Issuing",
            ("False",),
            "The certificates are new and no broker answers yet, or another program has not created the Secret that "
            "spec.security.tls.certificate names.",
            "Wait until the brokers are ready, or check the program that creates the Secret.",
        ),
        Reason(
            "Propagating",
            ("False",),
            "Brokers have not loaded the newest certificate yet. The kubelet updates the files of a pod within two "
            "minutes.",
            "Wait, then check the logs of the brokers that the message names for `certificate`.",
        ),
        Reason(
            "Expiring",
            ("False",),
            "The certificate of the brokers expires within three days, although it should be renewed after sixty days.",
            "Check the log of the operator, and whether it may write Secrets.",
        ),
        Reason(
            "NotOurs",
            ("False",),
            "A Secret with the name of one of the operator's Secrets exists, and the operator did not create it. The "
            "operator never overwrites this Secret, and creates no broker.",
            "Rename or delete the Secret that the message names.",
        ),
    ),
    CLUSTER_ONLY,
)
