"""Bounds of requests, checked on the bytes before any object is created.

`messages` walks through every request according to Kafka's own definition before the library decodes it: the library
trusts lengths and counts, and six bytes of a request can become an object of 500 bytes. The walk allocates no memory on
the basis of claims in a request, and its time is proportional to the number of bytes. This module must not know the
purposes of fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from fairlead_api.batch.header import Buffer

ELEMENTS_MAX: Final = 100_000
"""Maximum number of elements in all arrays of a request."""
DATA_ELEMENTS_MAX: Final = 20_000
"""Maximum number of elements in all arrays of a produce or fetch request: 10,000 partitions, each in its own topic."""
TAGGED_FIELDS_MAX: Final = 100
"""Maximum number of tagged fields in a structure. Kafka's definitions have at most three."""
TAGGED_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes that the library copies because of tagged fields: for each structure with tagged fields, the
library copies the rest of the request. Clients send no tagged fields in long arrays."""
VERSION_MAX: Final = 2**15 - 1

_FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_VARINT_BITS_MAX: Final = 28
_NULL_STRUCTURE: Final = 0xFF
_NO_VERSIONS: Final = range(0)


class UnboundedRequest(Exception):
    """Raised for a request whose lengths or counts exceed its bytes or the limits."""


class _Walk:
    """Position in the bytes of one request, and the number of elements that the rest of the request may have."""

    __slots__ = ("at", "body", "elements_left", "stop", "tagged_bytes")

    def __init__(self, body: memoryview, elements_max: int) -> None:
        self.body = body
        self.at = 0
        self.stop = len(body)
        self.elements_left = elements_max
        self.tagged_bytes = 0

    def skip(self, nbytes: int) -> None:
        """Move the position past some bytes."""
        self.at += nbytes
        if self.at > self.stop:
            message = f"a field ends at byte {self.at} of {self.stop}"
            raise UnboundedRequest(message)

    def varint(self) -> int:
        """Read an unsigned number of at most 32 bits."""
        number = shift = 0
        while shift <= _VARINT_BITS_MAX:
            byte = self.body[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        message = f"the number before byte {self.at} has more than 32 bits"
        raise UnboundedRequest(message)

    def fixed(self, form: struct.Struct) -> int:
        """Read a signed number."""
        number: int = form.unpack_from(self.body, self.at)[0]
        self.at += form.size
        return number

    def length(self, form: struct.Struct | None, *, nullable: bool, what: str) -> int:
        """Read a length or a count, 0 for null; if `form` is None, the length is compact."""
        number = self.varint() - 1 if form is None else self.fixed(form)
        if number >= 0:
            return number
        if number == -1 and nullable:
            return 0
        message = f"{what} has a length of {number}"
        raise UnboundedRequest(message)

    def count(self, elements: int) -> None:
        """Deduct elements from the limit."""
        self.elements_left -= elements
        if self.elements_left < 0:
            message = "too many elements in one request"
            raise UnboundedRequest(message)


_Step: TypeAlias = Callable[[_Walk], None]
_Field: TypeAlias = Mapping[str, Any]


class RequestShape:
    """Walk through the requests of an API in one version."""

    __slots__ = ("_step",)

    def __init__(self, definition: _Field, version: int) -> None:
        """`definition` is Kafka's definition of the request, in which common structures are expanded."""
        flexible = version in _versions(definition.get("flexibleVersions"))
        self._step = _as_step(_structure(definition["fields"], version, flexible))

    def check(self, body: Buffer, elements_max: int) -> None:
        """Check that all lengths in a request, without its header, lie within its bytes.

        `elements_max` limits the elements of all arrays together. Raises `UnboundedRequest`.
        """
        walk = _Walk(memoryview(body), elements_max)
        try:
            self._step(walk)
        except (IndexError, struct.error):
            message = f"the request ends inside of a field, at byte {walk.stop}"
            raise UnboundedRequest(message) from None


def _versions(text: str | None) -> range:
    if text is None or text == "none" or not text:
        return _NO_VERSIONS
    first, _, last = text.partition("-")
    if first.endswith("+"):
        return range(int(first[:-1]), VERSION_MAX + 1)
    return range(int(first), int(last or first) + 1)


def _structure(fields: Sequence[_Field], version: int, flexible: bool) -> _Step | int:
    """Return the walk through the fields of a version, with adjacent fields of fixed size as one step.

    A structure that has only fields of fixed size is represented by its number of bytes.
    """
    steps: list[_Step | int] = []
    tagged: dict[int, _Step] = {}
    for field in fields:
        if version in _versions(field.get("taggedVersions")):
            tagged[field["tag"]] = _as_step(_value(field, version, flexible))
        elif version in _versions(field["versions"]):
            step = _value(field, version, flexible)
            if isinstance(step, int) and steps and isinstance(steps[-1], int):
                steps[-1] += step
            else:
                steps.append(step)
    if not flexible and len(steps) == 1 and isinstance(steps[0], int):
        return steps[0]
    walk = tuple(map(_as_step, steps))
    if flexible:
        walk = (*walk, _tagged_fields(tagged))

    def structure(request: _Walk) -> None:
        for step in walk:
            step(request)

    return structure


def _as_step(step: _Step | int) -> _Step:
    """Return the walk that skips a fixed number of bytes, or the step itself."""
    if not isinstance(step, int):
        return step

    def fixed(request: _Walk) -> None:
        request.skip(step)

    return fixed


def _value(field: _Field, version: int, flexible: bool) -> _Step | int:
    """Return the walk through a value, or the size of the value if every value has the same size."""
    kind: str = field["type"]
    if kind.startswith("[]"):
        return _array(field, version, flexible)
    nullable = version in _versions(field.get("nullableVersions"))
    if kind in _FIXED_BYTES:
        return _FIXED_BYTES[kind]
    if "fields" in field:
        inner = _structure(field["fields"], version, flexible)
        return _maybe(_as_step(inner)) if nullable else inner
    return _bytes(field["name"], _form(kind, flexible), nullable)


def _form(kind: str, flexible: bool) -> struct.Struct | None:
    if flexible:
        return None
    return _INT16 if kind == "string" else _INT32


def _bytes(name: str, form: struct.Struct | None, nullable: bool) -> _Step:
    def value(request: _Walk) -> None:
        request.skip(request.length(form, nullable=nullable, what=name))

    return value


def _maybe(inner: _Step) -> _Step:
    """Return the walk through a structure that may be null."""

    def structure(request: _Walk) -> None:
        present = request.body[request.at]
        request.at += 1
        if present == 1:
            inner(request)
        elif present != _NULL_STRUCTURE:
            # The library reads the fields of a structure after any other byte.
            message = f"a structure begins with {present} before byte {request.at}"
            raise UnboundedRequest(message)

    return structure


def _array(field: _Field, version: int, flexible: bool) -> _Step:
    name = field["name"]
    nullable = version in _versions(field.get("nullableVersions"))
    form = _form("array", flexible)
    if "fields" in field:
        element = _structure(field["fields"], version, flexible)
    else:
        element = _value({"name": name, "type": field["type"][2:]}, version, flexible)

    if isinstance(element, int):
        size = element

        def numbers(request: _Walk) -> None:
            length = request.length(form, nullable=nullable, what=name)
            request.count(length)
            request.skip(length * size)

        return numbers
    step = element

    def array(request: _Walk) -> None:
        length = request.length(form, nullable=nullable, what=name)
        request.count(length)
        for _ in range(length):
            step(request)

    return array


def _tagged_fields(known: Mapping[int, _Step]) -> _Step:
    def tagged_fields(request: _Walk) -> None:
        if not request.body[request.at]:
            # Nearly every structure has no tagged fields.
            request.at += 1
            return
        length = request.varint()
        request.tagged_bytes += request.stop - request.at
        if length > TAGGED_FIELDS_MAX or request.tagged_bytes > TAGGED_BYTES_MAX:
            message = f"{length} tagged fields before byte {request.at}; allowed: {TAGGED_FIELDS_MAX}"
            raise UnboundedRequest(message)
        last = -1
        for _ in range(length):
            tag = request.varint()
            size = request.varint()
            start = request.at
            request.skip(size)
            if tag <= last:
                message = f"tag {tag} after tag {last}"
                raise UnboundedRequest(message)
            last = tag
            if tag in known:
                stop, request.at = request.at, start
                known[tag](request)
                if request.at != stop:
                    message = f"the field of tag {tag} ends at byte {request.at}; its size says {stop}"
                    raise UnboundedRequest(message)

    return tagged_fields
