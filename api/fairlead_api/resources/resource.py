"""Base classes of custom resources: serialization, metadata, and parsing of stored objects.

The models have two kinds of limits. Numbers and types (`ge`, `le`, types, choices) are checked whenever a model is
created. Lengths, patterns and CEL rules are only in the schema and are enforced by the API server, so that objects
stored by an older or newer release can still be read. Unknown fields are ignored when an object is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

GROUP: Final = "fairlead.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "fairlead"
"""Category of Fairlead's resources; `kubectl get fairlead` lists all of them."""


class Part(BaseModel):
    """Base class of the parts of a resource: immutable, with camelCase names in manifests, ignoring unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def manifest(self) -> dict[str, object]:
        """Return the part as it appears in a manifest, without fields that are not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Metadata(Part):
    """Fields of an object's metadata that the operator uses."""

    name: str
    namespace: str
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """Error in a stored object: path of the invalid field, such as `spec.brokers[0].replicas`, and description."""

    path: str
    reason: str

    def __str__(self) -> str:
        """Return the error in the API server's format: path, colon, reason."""
        return f"{self.path}: {self.reason}"


class InvalidResource(Exception):
    """A stored object cannot be read by this release; the operator reports the error as the condition InvalidSpec."""

    def __init__(self, subject: str, faults: tuple[Fault, ...]) -> None:
        super().__init__(f"{subject}: {'; '.join(map(str, faults))}")
        self.subject = subject
        """Kind, namespace and name of the object, if present, for example `Cluster shop/main`."""
        self.faults = faults
        """All errors in the object, at least one."""

    @property
    def path(self) -> str:
        """Path of the first error."""
        return self.faults[0].path

    @property
    def reason(self) -> str:
        """Description of the first error."""
        return self.faults[0].reason


class Resource(Part):
    """Custom resource object; an unreadable status is treated as absent, since only the operator writes it."""

    metadata: Metadata

    @property
    def namespace(self) -> str:
        """Namespace of the object."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.metadata.name

    @classmethod
    def parse(cls, manifest: Mapping[str, object]) -> Self:
        """Return the object of a stored manifest. Raises `InvalidResource` if metadata or spec cannot be read."""
        try:
            return cls.model_validate(manifest)
        except ValidationError as error:
            faults = _faults(error)
        beyond_status = tuple(fault for fault in faults if not f"{fault.path}.".startswith("status."))
        if beyond_status:
            raise InvalidResource(_subject(cls.__name__, manifest), beyond_status)
        return cls.model_validate({key: value for key, value in manifest.items() if key != "status"})


def _subject(kind: str, manifest: Mapping[str, object]) -> str:
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return kind
    return f"{kind} {metadata.get('namespace', '?')}/{metadata.get('name', '?')}"


def _faults(error: ValidationError) -> tuple[Fault, ...]:
    return tuple(Fault(_path(entry["loc"]), _reason(entry["msg"])) for entry in error.errors())


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def _reason(message: str) -> str:
    return message.removeprefix("Value error, ")
