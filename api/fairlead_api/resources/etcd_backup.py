"""Custom resource EtcdBackup: snapshots of the managed etcd of a Cluster on a volume, by schedule or once."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from fairlead_api.resources.cluster_status import Conditions
from fairlead_api.resources.resource import Part, Resource
from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules
from fairlead_api.resources.texts import ObjectName, ShortText

KEEP_MAX = 1000
NAME_LENGTH_MAX = 45
"""Maximum length of an EtcdBackup's name, since its CronJob has the suffix `-backup` and at most 52 characters."""


class BackedUpCluster(Part):
    """The Cluster whose etcd is backed up."""

    name: ObjectName
    """Name of the Cluster, which is in the namespace of the EtcdBackup."""


class EtcdBackupSpec(Part):
    """Desired snapshots."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                "self.clusterRef == oldSelf.clusterRef && has(self.schedule) == has(oldSelf.schedule)",
                "clusterRef cannot be changed, and a schedule cannot be added or removed: create another EtcdBackup",
                ".clusterRef",
                RuleReason.FORBIDDEN,
            ),
            Rule(
                "!has(self.timeZone) || has(self.schedule)",
                "timeZone requires a schedule",
                ".timeZone",
            ),
        )
    )

    cluster_ref: BackedUpCluster
    """The Cluster whose managed etcd is backed up. The reference cannot be changed."""
    claim_name: ObjectName
    """Name of an existing PersistentVolumeClaim for the snapshots, in the namespace of the EtcdBackup. The operator \
neither creates nor deletes the claim."""
    schedule: Annotated[str, kubernetes(minLength=1, maxLength=100)] | None = None
    """Times of the snapshots in the format of a CronJob, such as `0 * * * *`. Without a schedule, one snapshot is \
made."""
    time_zone: Annotated[str, kubernetes(minLength=1, maxLength=100)] | None = None
    """Time zone of the schedule, such as Europe/Berlin; by default the time zone of the Kubernetes control plane."""
    keep: Annotated[int, Field(ge=1, le=KEEP_MAX)] = 7
    """Number of snapshots to keep; older snapshots of this EtcdBackup are removed after each new snapshot."""


class EtcdSnapshot(Part):
    """A snapshot of etcd."""

    file: ShortText
    """Name of the file on the volume."""
    time: Annotated[str, kubernetes(format="date-time")]
    """Time at which the snapshot began."""
    bytes: int
    """Size of the file."""
    revision: int
    """Revision of etcd's store; the snapshot contains at least all changes up to this revision."""
    sha256: ShortText
    """SHA-256 at the end of the file, in hexadecimal."""


class EtcdBackupStatus(Part):
    """Observed state of the snapshots."""

    observed_generation: int | None = None
    """Generation of the spec for which the status was written."""
    conditions: Conditions = ()
    """Conditions; the conditions reference explains each type and reason."""
    last_snapshot: EtcdSnapshot | None = None
    """Newest snapshot."""


class EtcdBackup(Resource):
    """Snapshots of the managed etcd of a Fairlead cluster."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(
                f"self.metadata.name.size() <= {NAME_LENGTH_MAX}",
                f"the name of an EtcdBackup must have at most {NAME_LENGTH_MAX} characters",
                ".metadata.name",
            )
        )
    )

    spec: EtcdBackupSpec
    """Desired snapshots."""
    status: EtcdBackupStatus = EtcdBackupStatus()
    """Observed state of the snapshots."""
