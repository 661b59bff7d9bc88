"""The Python SDK as programs use it: names, signatures, fields, values and the tree of errors."""

from __future__ import annotations

import inspect
from enum import Enum
from types import ModuleType
from typing import Any

import fairlead
import fairlead.blocking
import fairlead.errors
import fairlead.testing
import golden
from fairlead.errors import FairleadError

_CALLED = ("Admin", "Consumer", "Producer", "TopicPartition")
"""Classes that programs instantiate, unlike the classes whose objects only the SDK creates."""
_PROTOCOLS = ("__aenter__", "__enter__", "__await__", "__iter__", "__aiter__")


def sdk() -> Any:
    """Describe the public names of the SDK's modules."""
    return {
        "fairlead": _names(fairlead, fairlead.__all__),
        "fairlead.blocking": _names(fairlead.blocking, fairlead.blocking.__all__),
        "fairlead.testing": {
            each.__name__: _callable(each)
            for each in (fairlead.testing.cluster, fairlead.testing.running_cluster)
        },
    }


def errors() -> Any:
    """Describe every public error with its bases, its code and its own attributes."""
    found = {name: value for name, value in vars(fairlead.errors).items() if _is_error(value)}
    return {
        name: {
            "bases": [base.__name__ for base in error.__bases__],
            "call": str(inspect.signature(error)) if "__init__" in vars(error) else None,
            "code": getattr(error, "code_of_class", None),
            "attributes": sorted(
                attribute
                for attribute in {*vars(error), *error.__annotations__}
                if not attribute.startswith("_") and attribute != "code_of_class"
            ),
        }
        for name, error in found.items()
    }


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, FairleadError)


def _names(module: ModuleType, names: list[str]) -> Any:
    return {name: _described(getattr(module, name)) for name in names}


def _described(value: Any) -> Any:
    if not inspect.isclass(value):
        return type(value).__name__
    if issubclass(value, Enum):
        return {name: member.value for name, member in value.__members__.items()}
    if issubclass(value, Exception):
        return "exception"
    members = {name: _member(value, name) for name in dir(value) if not name.startswith("_")}
    entered = [name for name in _PROTOCOLS if hasattr(value, name)]
    described = {"members": members, "protocols": entered}
    return described | {"call": str(inspect.signature(value))} if value.__name__ in _CALLED else described


def _member(owner: type, name: str) -> str:
    found = inspect.getattr_static(owner, name)
    if isinstance(found, property):
        return f"property -> {inspect.signature(found.fget).return_annotation}" if found.fget else "property"
    if isinstance(found, staticmethod | classmethod) or inspect.isfunction(found):
        return _callable(getattr(owner, name))
    annotations = [vars(each).get("__annotations__", {}) for each in owner.__mro__]
    types = [each[name] for each in annotations if name in each]
    return f"attribute: {types[0]}" if types else "attribute"


def _callable(value: Any) -> str:
    kind = "async " if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value) else ""
    return f"{kind}{inspect.signature(value)}"


def test_the_sdk_is_unchanged() -> None:
    """Public names, arguments, defaults, fields and values of the SDK are unchanged."""
    golden.assert_unchanged("sdk", sdk())


def test_the_errors_are_unchanged() -> None:
    """Errors of the SDK keep their names, their bases and their codes."""
    golden.assert_unchanged("errors", errors())


def test_public_names_are_sorted() -> None:
    """Public names of the SDK are sorted, so that they are readable and two additions merge without a conflict."""
    for module in (fairlead, fairlead.blocking):
        assert module.__all__ == sorted(module.__all__)
