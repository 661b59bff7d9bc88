"""What every custom resource has: how models are written on the wire, metadata, and the door for stored objects.

Limits of two kinds stand on the models. Numbers and shapes (`ge`, `le`, types, choices) hold wherever a model is
made. Lengths, patterns and rules in CEL stand in the schema alone: the API server enforces them, and an object that
an older or newer release stored is still read. Fields that a model does not know are left out when reading.
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
"""`kubectl get fairlead` lists every resource of ours."""


class Part(BaseModel):
    """A piece of a resource: immutable, camelCase on the wire, deaf to fields that it does not know."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def manifest(self) -> dict[str, object]:
        """Return this piece as it is written in a manifest; what is not set is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Metadata(Part):
    """What the operator reads of an object's metadata."""

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
    """One thing that is wrong with a stored object: where, as `spec.brokers[0].replicas`, and what."""

    path: str
    reason: str

    def __str__(self) -> str:
        """Read as the API server writes it: path, colon, reason."""
        return f"{self.path}: {self.reason}"


class InvalidResource(Exception):
    """A stored object that this release cannot read. It becomes the condition InvalidSpec, never a crash."""

    def __init__(self, subject: str, faults: tuple[Fault, ...]) -> None:
        super().__init__(f"{subject}: {'; '.join(map(str, faults))}")
        self.subject = subject
        """Kind, namespace and name, as far as the object has them: `Cluster shop/main`."""
        self.faults = faults
        """Everything that is wrong, never empty."""

    @property
    def path(self) -> str:
        """Where the first fault is."""
        return self.faults[0].path

    @property
    def reason(self) -> str:
        """What the first fault is."""
        return self.faults[0].reason


class Resource(Part):
    """A whole object. Its status is the operator's own: one that cannot be read counts as not written yet."""

    metadata: Metadata

    @property
    def namespace(self) -> str:
        """The namespace of the object."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.metadata.name

    @classmethod
    def parse(cls, manifest: Mapping[str, object]) -> Self:
        """Return the object of a stored manifest; raise `InvalidResource` when metadata or spec cannot be read."""
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
