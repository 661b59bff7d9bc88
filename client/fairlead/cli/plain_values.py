"""Values of options that need no conversion and are accepted without Pydantic.

typer converts the value of every option with Pydantic, whose import takes a third of the processor time of a short
command. Texts, choices, missing values and defaults are used as they are, so only another value, such as a number on
the command line, loads Pydantic. `main` calls `accept_plain_values`, which replaces a private function of typer; with a
release of typer that lacks this function, every value is converted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Any, Final

import typer.core

_PLAIN: Final = (str, int, float, bool)


class PlainValues:
    """Conversion of one option, which is typer's own conversion for every value that is not plain."""

    __slots__ = ("_converter", "_descriptor", "_make")

    def __init__(self, descriptor: Any, make: Callable[[Any], Any]) -> None:
        """`make` returns typer's conversion for the descriptor of an option."""
        self._descriptor = descriptor
        self._make = make
        self._converter: Any = None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value in the type of the option. Raises typer's error for an invalid value."""
        if not param.multiple and param.nargs == 1:
            if self._is_plain(value):
                return value
            if type(value) is str and _is_choice(self._descriptor.annotation):
                with suppress(ValueError):
                    return self._descriptor.annotation(value)
        if self._converter is None:
            self._converter = self._make(self._descriptor)
        return self._converter.coerce(value, param=param, ctx=ctx)

    def _is_plain(self, value: Any) -> bool:
        annotation, about = self._descriptor.annotation, self._descriptor.parameter_info
        if value is None:
            return True
        if about.parser is not None or self._descriptor.file_annotation is not None:
            return False
        # A number or a choice of the right type is the default of its option, because the command line has only texts.
        return type(value) is annotation and (annotation in _PLAIN or _is_choice(annotation))


def _is_choice(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def accept_plain_values() -> None:
    """Let typer use plain values without a conversion."""
    make: Callable[[Any], Any] | None = getattr(typer.core, "build_runtime_param", None)
    if make is not None:
        vars(typer.core)["build_runtime_param"] = lambda descriptor: PlainValues(descriptor, make)
