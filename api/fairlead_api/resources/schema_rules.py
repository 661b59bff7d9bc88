"""Checks of the API server that Pydantic does not perform: Kubernetes schema keywords, and CEL rules.

The checks are attached to the models as extra JSON schema, which the generator of the custom resource definitions
reads. The message of a rule is shown to users when the rule is violated; the message explains the remedy if the remedy
is not obvious.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import Field, JsonValue
from pydantic.fields import FieldInfo  # noqa: TC002 - a top-level import shows the dependency

RULES: Final = "x-kubernetes-validations"


class RuleReason(StrEnum):
    """Kind of refusal that the API server reports for a violated rule; other kinds omit the rule's message."""

    INVALID = "FieldValueInvalid"
    FORBIDDEN = "FieldValueForbidden"


@dataclass(frozen=True, slots=True)
class Rule:
    """CEL rule; a rule that uses `oldSelf` applies only to updates."""

    rule: str
    """CEL expression that is true for allowed values."""
    message: str
    """Message of the API server when the rule is violated."""
    field_path: str = ""
    """Path of the invalid field relative to the rule's field, such as `.name`; empty for the rule's field itself."""
    reason: RuleReason = RuleReason.INVALID

    def schema(self) -> dict[str, JsonValue]:
        """Return the rule as it appears in a schema."""
        words: dict[str, JsonValue] = {"rule": self.rule, "message": self.message, "reason": str(self.reason)}
        if self.field_path:
            words["fieldPath"] = self.field_path
        return words


def rules(*given: Rule, **words: JsonValue) -> dict[str, JsonValue]:
    """Return extra JSON schema with rules and schema keywords, for a model's configuration or a field."""
    listed: list[JsonValue] = [rule.schema() for rule in given]
    return {**words, RULES: listed} if listed else {**words}


def kubernetes(*given: Rule, **words: JsonValue) -> FieldInfo:
    """Return a type annotation with rules and schema keywords such as `maxLength=63`."""
    extra = rules(*given, **words)
    info: FieldInfo = Field(json_schema_extra=extra)
    return info
