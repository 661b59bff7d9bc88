"""All settings: configuration keys, settings of broker and operator, environment variables, options of Spark."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

import checkout
import golden
from fairlead_api.configuration.keys import KEYS
from fairlead_broker.pod import CREDENTIAL_FILES, CREDENTIAL_TEXTS, OF_POD
from fairlead_broker.settings import START_KEYS, BrokerSettings, Limits
from fairlead_operator.settings import OperatorSettings
from fairlead_spark.lake.options import LAKE_OPTIONS
from fairlead_spark.options import READ_OPTIONS
from fairlead_spark.planning.columns import COLUMNS
from fairlead_spark.sink.write_options import WRITE_OPTIONS

if TYPE_CHECKING:
    from pydantic import BaseModel

_VARIABLE = re.compile(r"(FAIRLEAD|POD|OTEL|XDG|JAVA|SPARK|COMP|NODE|KUBERNETES)_[A-Z_]*[A-Z]")
_PACKAGES = ("api", "broker", "client", "operator", "spark")


def configuration() -> Any:
    """Describe every configuration key."""
    return {
        name: {
            "type": key.type.value,
            "default": key.default,
            # Text that answers show as the default if the default depends on another setting.
            "default_rule": key.default_rule,
            "range": [key.minimum, key.maximum],
            "choices": list(key.choices),
            "choices_supported": list(key.choices_supported),
            "scopes": sorted(key.scopes),
            "dynamic": key.dynamic,
            "unit": key.unit,
        }
        for name, key in KEYS.items()
    }


def settings() -> Any:
    """Describe every setting by its variable with type, bounds and default, and the placeholders and credentials."""
    return {
        "broker": _variables("FAIRLEAD_", BrokerSettings) | _variables("FAIRLEAD_LIMITS__", Limits),
        "broker_keys_at_start": START_KEYS,
        "broker_placeholders": OF_POD,
        "broker_credentials": CREDENTIAL_FILES | CREDENTIAL_TEXTS,
        "operator": _variables("FAIRLEAD_OPERATOR_", OperatorSettings),
    }


def _variables(prefix: str, model: type[BaseModel]) -> Any:
    schema = golden.without_texts(golden.inlined(model.model_json_schema()))
    return {prefix + name.upper(): field for name, field in schema["properties"].items() if name != "limits"}


def variables() -> Any:
    """Describe every environment variable that a package names, to read or to set."""
    found: dict[str, set[str]] = {package: set() for package in _PACKAGES}
    for path in checkout.files():
        if path.suffix == ".py" and path.parts[0] in found:
            tree = ast.parse((checkout.ROOT / path).read_text(encoding="utf-8"))
            texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            named = {text for text in texts if isinstance(text, str) and _VARIABLE.fullmatch(text)}
            found[path.parts[0]] |= named
    return {package: sorted(names) for package, names in found.items()}


def spark_options() -> Any:
    """Describe the names of all options of Spark's sources and sinks, and the columns that a source returns."""
    return {
        "read": {each.name: each.reads for each in READ_OPTIONS},
        "write": sorted(each.name for each in WRITE_OPTIONS),
        "lake": sorted(each.name for each in LAKE_OPTIONS),
        "columns": [[each.name, each.ddl] for each in COLUMNS],
    }


def test_the_configuration_keys_are_unchanged() -> None:
    """Configuration keys keep their types, defaults, allowed values and scopes."""
    golden.assert_unchanged("configuration", configuration())


def test_the_settings_are_unchanged() -> None:
    """Settings of broker and operator keep their variables, types, bounds and defaults."""
    golden.assert_unchanged("settings", settings())


def test_the_environment_variables_are_unchanged() -> None:
    """Environment variables that the packages name are unchanged."""
    golden.assert_unchanged("variables", variables())


def test_the_options_of_spark_are_unchanged() -> None:
    """The options of Spark's sources and sinks, and the columns that a source returns, are unchanged."""
    golden.assert_unchanged("spark_options", spark_options())
