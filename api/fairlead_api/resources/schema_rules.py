"""What the API server checks and Pydantic does not: words of the schema of Kubernetes, and rules in CEL.

They ride on the models as extra JSON schema, from where the generator of the custom resource definitions takes them.
A rule has the exact message that a user reads when it is broken; messages say what to do where that is not plain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import Field, JsonValue
from pydantic.fields import FieldInfo  # noqa: TC002 - as everywhere, imports show what is depended on

RULES: Final = "x-kubernetes-validations"


class RuleReason(StrEnum):
    """The kind of refusal that the API server reports for a broken rule; others exist that swallow the message."""

    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule in CEL. One that names `oldSelf` holds for updates only."""

    rule: str
    """The expression; it is true of what is allowed."""
    message: str
    """Message of the API server to a user who breaks the rule."""
    field_path: str = ""
    """The field below the rule's place that is to blame, as `.name`; empty for the place itself."""
    reason: RuleReason = RuleReason.INVALID

    def schema(self) -> dict[str, JsonValue]:
        """Return the rule as it stands in a schema."""
        words: dict[str, JsonValue] = {"rule": self.rule, "message": self.message, "reason": str(self.reason)}
        if self.field_path:
            words["fieldPath"] = self.field_path
        return words


def rules(*given: Rule, **words: JsonValue) -> dict[str, JsonValue]:
    """Return extra JSON schema with rules and words of a schema, for a model's configuration or a field."""
    listed: list[JsonValue] = [rule.schema() for rule in given]
    return {**words, RULES: listed} if listed else {**words}


def kubernetes(*given: Rule, **words: JsonValue) -> FieldInfo:
    """Return an annotation of a type with rules and words of a schema, as `maxLength=63`."""
    extra = rules(*given, **words)
    info: FieldInfo = Field(json_schema_extra=extra)
    return info
