from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, JsonValue

from fairlead_api.resources.schema_rules import Rule, kubernetes, rules
from fairlead_operator.schema.structural import NotStructural, structural_schema
from refusals import raises

Short = Annotated[str, kubernetes(Rule("self != 'x'", "not x"), maxLength=3)]
RULE = {"rule": "self != 'x'", "message": "not x", "reason": "FieldValueInvalid"}


class Inner(BaseModel):
    """An inner object."""

    model_config = {"json_schema_extra": rules(Rule("has(self.a)", "a is needed"))}

    a: Short = "ab"
    b: int = 7


def field(annotation: Any, default: Any = ...) -> Any:
    """Return the structural schema of a field `it` with the given annotation and default."""
    model = type(
        "Model",
        (BaseModel,),
        {"__annotations__": {"it": annotation}} | ({} if default is ... else {"it": default}),
    )
    properties = structural_schema(model)["properties"]
    assert isinstance(properties, dict)
    return properties["it"]


def test_what_may_be_missing_has_no_null() -> None:
    """An optional field has no null in its schema, and keeps its rules and lengths."""
    assert field(Short | None, None) == {"type": "string", "maxLength": 3, "x-kubernetes-validations": [RULE]}


def test_a_number_or_text_is_kubernetes_own_type() -> None:
    """A field that is either a number or text has Kubernetes' own type and a length, which bounds the cost of rules."""
    annotated = Annotated[int | str, kubernetes(maxLength=32)]

    assert field(annotated) == {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "maxLength": 32,
    }


def test_a_single_choice_is_an_enumeration() -> None:
    """A single choice becomes an enumeration, because structural schemas do not have `const`."""
    assert field(Literal["a"]) == {"type": "string", "enum": ["a"]}
    assert field(Literal["a", "b"], "b") == {"type": "string", "enum": ["a", "b"], "default": "b"}


def test_objects_are_in_place_with_the_rules_of_both() -> None:
    """A nested object is inlined, with the rules of the field and of its model."""
    own = Rule("self == oldSelf", "cannot be changed")
    schema = field(Annotated[Inner, kubernetes(own)])

    assert [each["message"] for each in schema["x-kubernetes-validations"]] == [
        "a is needed",
        "cannot be changed",
    ]
    assert schema["properties"]["b"] == {"type": "integer", "default": 7}
    assert "$ref" not in schema


def test_an_optional_object_keeps_the_rules_of_both() -> None:
    """An optional nested object has the rules of the field and of its model."""
    schema = field(Annotated[Inner | None, kubernetes(Rule("true", "of the field"))], None)

    assert [each["message"] for each in schema["x-kubernetes-validations"]] == ["a is needed", "of the field"]


def test_a_default_says_only_what_was_asked_for() -> None:
    """The default of an object has only explicit values, because the API server fills in the inner defaults."""
    assert field(Inner, Inner())["default"] == {}
    assert field(Inner, Inner(b=8))["default"] == {"b": 8}


def test_a_default_that_says_nothing_is_none() -> None:
    """An empty string, list or map is not a default, because it would be added to every object."""
    assert field(dict[str, int], Field(default_factory=dict)) == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }
    assert field(tuple[int, ...], ()) == {"type": "array", "items": {"type": "integer"}}
    assert field(str, "") == {"type": "string"}
    assert field(bool, False) == {"type": "boolean", "default": False}


def test_lists_keep_what_their_items_are() -> None:
    """The schema of a list's items follows the same rules as the schema of a field."""
    assert field(tuple[Short, ...])["items"] == {
        "type": "string",
        "maxLength": 3,
        "x-kubernetes-validations": [RULE],
    }


def test_free_objects_stay_free() -> None:
    """A free-form object preserves unknown fields and has no schema for them."""
    free = kubernetes(
        **{"type": "object", "additionalProperties": None, "x-kubernetes-preserve-unknown-fields": True}
    )

    assert field(Annotated[dict[str, JsonValue], free], Field(default_factory=dict)) == {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }


@pytest.mark.parametrize(
    ("annotation", "named"),
    [
        (int | bool, "Model.it"),
        (Annotated[float, Field(gt=0)], "Model.it exclusiveMinimum"),
        (set[str], "Model.it uniqueItems"),
        (
            tuple[Annotated[int, Field(multiple_of=3)], ...],
            "Model.it[] multipleOf",
        ),
    ],
)
def test_what_has_no_counterpart_is_an_error_and_not_a_guess(annotation: Any, named: str) -> None:
    """A type without a structural counterpart is an error that names the field and the reason."""
    with raises(NotStructural, *named.split()):
        field(annotation)


def test_a_map_with_entries_by_default_is_an_error() -> None:
    """A map with default entries is an error, because users could not remove them."""
    with raises(NotStructural, "Model.it"):
        field(dict[str, int], {"a": 1})
