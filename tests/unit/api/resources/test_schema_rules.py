from __future__ import annotations

from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes, rules


def test_a_rule_is_written_with_the_words_of_a_schema() -> None:
    """A rule in the schema has Kubernetes' field names, and no path if it applies to the field itself."""
    assert Rule("self > 0", "must be above zero").schema() == {
        "rule": "self > 0",
        "message": "must be above zero",
        "reason": "FieldValueInvalid",
    }
    assert Rule("true", "no", ".a", RuleReason.FORBIDDEN).schema() == {
        "rule": "true",
        "message": "no",
        "reason": "FieldValueForbidden",
        "fieldPath": ".a",
    }


def test_words_without_rules_stay_alone() -> None:
    """If no rules are given, the schema contains no list of rules."""
    assert rules(maxLength=5) == {"maxLength": 5}
    assert kubernetes(maxLength=5).json_schema_extra == {"maxLength": 5}
