"""Messages of Kafka's protocol with values in every field, made by Hypothesis along Kafka's own definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

Values: TypeAlias = dict[str, Any]
"""Values of a structure by the names of its fields in the definition, with structures as dictionaries."""

INTEGERS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
NAMES: Final = st.text(st.characters(codec="utf-8"), max_size=8)
TIME_MS_MAX: Final = 2**41
"""Largest time, in the year 2039."""
VERSION_MAX: Final = 32_767


def versions(text: str | None) -> range:
    """Return the versions that a definition names."""
    if not text or text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def fields_of(structure: Mapping[str, Any], version: int) -> list[Mapping[str, Any]]:
    """Return the fields that a structure has in a version, in order."""
    return [field for field in structure["fields"] if version in versions(field["versions"])]


def filled(structure: Mapping[str, Any], version: int) -> st.SearchStrategy[Values]:
    """Return values for all fields of a version of a message, or of a structure in it."""
    return st.fixed_dictionaries(
        {field["name"]: _value(field, version) for field in fields_of(structure, version)}
    )


def _value(field: Mapping[str, Any], version: int) -> st.SearchStrategy[Any]:
    kind: str = field["type"]
    if kind.startswith("[]"):
        inner = {**field, "type": kind[2:]}
        inner.pop("nullableVersions", None)
        value: st.SearchStrategy[Any] = st.lists(_value(inner, version), max_size=3)
    elif "fields" in field:
        value = filled(field, version)
    else:
        value = _named(field["name"], kind)
    nullable = version in versions(field.get("nullableVersions"))
    return st.none() | value if nullable else value


def _named(name: str, kind: str) -> st.SearchStrategy[Any]:
    """Return values of a field; the second library knows error codes by name, and times as dates."""
    if kind == "int16" and name.endswith("ErrorCode"):
        return st.integers(-1, 100)
    if kind == "int64" and (name.endswith("Ms") or "Timestamp" in name):
        return st.integers(0, TIME_MS_MAX)
    return _simple(kind)


def _simple(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        bits = INTEGERS[kind]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "uint16": st.integers(0, 2**16 - 1),
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
        "uuid": st.uuids(),
        "string": NAMES,
        "bytes": st.binary(max_size=8),
        "records": st.binary(max_size=8),
        # The library's type for authorized operations, a number of 32 bits in Kafka's definitions.
        "bitfield": st.sets(st.integers(0, 30)),
    }
    return simple[kind]


def message_of(kind: Any, version: int, values: Values) -> Any:
    """Return a message of the library that brokers use, with these values."""
    return kind(version=version, **_arguments(kind, version, values))


def _arguments(kind: Any, version: int, values: Values) -> Values:
    fields = {field._name: field for field in kind._struct.fields.values()}
    found = {}
    for name, value in values.items():
        field = fields[name]
        if value is None or not (field.is_struct() or field.is_struct_array()):
            found[field.name] = value
        elif field.is_struct():
            found[field.name] = message_of(field.data_class, version, value)
        else:
            found[field.name] = [message_of(field.data_class, version, each) for each in value]
    return found


def values_of(message: Any, structure: Mapping[str, Any], version: int) -> Values:
    """Return the values of all fields of a message of the library."""
    names = {field._name: field.name for field in message._struct.fields.values()}
    return {
        field["name"]: _plain(getattr(message, names[field["name"]]), field, version)
        for field in fields_of(structure, version)
    }


def _plain(value: Any, field: Mapping[str, Any], version: int) -> Any:
    if value is None or "fields" not in field:
        return value
    if field["type"].startswith("[]"):
        return [values_of(each, field, version) for each in value]
    return values_of(value, field, version)
