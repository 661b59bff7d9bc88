"""Pages of the SDK: every public class and function with arguments and documentation, and a page about retries."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from enum import Enum
from typing import TYPE_CHECKING, Any

from page_text import GENERATED, code, field_texts, table

import fairlead
import fairlead.blocking
import fairlead.errors
import fairlead.testing
from fairlead.settings import ConnectionSettings, ConsumerSettings, ProducerSettings
from fairlead_api.batch.header import Codec
from fairlead_api.problems import ProblemKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGES = {
    "producer": (
        "Producer",
        ("Producer", "Delivery", "RecordMetadata", "BatchDelivery", "BatchMetadata", "ProducerMetrics", "Acks"),
    ),
    "consumer": (
        "Consumer",
        ("Consumer", "ConsumerBatch", "Record", "TopicPartition", "Membership", "CommitMode", "OffsetPolicy",
         "OffsetAndTimestamp"),
    ),
    "table": ("Table", ("Table",)),
    "exactly-once": ("Exactly once", ("exactly_once", "ConsumingTransaction")),
    "admin": ("Admin", ("Admin",)),
}  # fmt: skip
"""Title of each page, and the names of the exports of `fairlead` on the page."""
ARGUMENTS = {"linger_seconds": "linger_ms", "codec": "compression"}
"""Names of client arguments for settings whose argument is not simply the setting's name without its unit."""
RETRIES = """# Retries and deadlines

Deadlines and pauses of the Python SDK, generated from the code. A call ends with its answer, with a typed error that a
retry cannot fix, or at its deadline with the last error.

- **One attempt** of any call takes at most `request_timeout`; a connection must be made within `connect_timeout`.
- **Admin calls, metadata calls and commits** are retried until `retry_timeout`; each attempt uses the next known
  address.
- **A record** must be acknowledged within `delivery_timeout` after `send`, including the time in its batch and all
  attempts; `retries_max` limits the number of retries. When a limit is exceeded, the delivery raises an error.
- **A fetch** is retried without a limit. A broker without new records answers after `fetch_wait_max`.
- **Pauses** between attempts are {initial:g} s after the first failure and double with each further failure up to
  {longest:g} s. The upper half of a pause is random. A pause is never shorter than the broker's `Retry-After`. After
  a leader has moved, the client reads the metadata again before the next attempt.

In every language, calls that fail with a problem of kind {retried} are retried. A call to an address that does not
answer is always retried. With an idempotent producer (the default), a record is stored once, however often the
record is sent. Without idempotence, an attempt without an answer may have stored the record, and the `side_effect`
of the error is `maybe`.

| pause after failure | 1 | 2 | 3 | 4 | 5 and more |
|---|---|---|---|---|---|
| at least | {shortest_pauses} |
| at most | {longest_pauses} |
"""


def pages() -> dict[str, str]:
    """Return the text of each page by its path under docs/reference."""
    written = {name: _page(title, _of(fairlead, names)) for name, (title, names) in PAGES.items()}
    written["blocking"] = _page("Without an event loop", _of(fairlead.blocking, fairlead.blocking.__all__),
                                fairlead.blocking.__doc__)  # fmt: skip
    written["testing"] = _page("Brokers for tests", [fairlead.testing.cluster, fairlead.testing.running_cluster],
                               fairlead.testing.__doc__)  # fmt: skip
    written["errors"] = _page("Errors", _errors(), fairlead.errors.__doc__)
    return {f"sdk/{name}.md": GENERATED + text for name, text in (*written.items(), ("retries", _retries()))}


def _of(module: Any, names: Iterable[str]) -> list[Any]:
    return [getattr(module, name) for name in names]


def _errors() -> list[type]:
    found = {value for value in vars(fairlead.errors).values() if inspect.isclass(value)}
    found = {value for value in found if issubclass(value, fairlead.FairleadError)}
    return sorted(found, key=lambda value: (len(value.__mro__), value.__name__))


def _page(title: str, entries: list[Any], introduction: str | None = None) -> str:
    parts = [f"# {title}", *([_words(introduction)] if introduction else [])]
    parts += [part for entry in entries for part in _entry(entry)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(entry: Any) -> Iterator[str]:
    yield f"## {entry.__name__}"
    if not inspect.isclass(entry):
        yield _signature(entry.__name__, entry)
        yield _words(entry.__doc__)
        return
    bases = [base.__name__ for base in entry.__bases__ if base.__module__.startswith("fairlead")]
    if bases and issubclass(entry, Exception):
        yield f"A `{bases[0]}`."
    if (
        not issubclass(entry, (Exception, Enum))
        and "__init__" in vars(entry)
        and not dataclasses.is_dataclass(entry)
    ):
        yield _signature(entry.__name__, entry.__init__)
    yield _words(entry.__doc__)
    fields = list(_fields(entry))
    if fields:
        yield table(["attribute", "meaning"], fields).rstrip()
    for name, member in _methods(entry):
        yield f"### {entry.__name__}.{name}"
        yield _signature(name, member)
        yield _words(member.__doc__)


def _methods(entry: type) -> Iterator[tuple[str, Any]]:
    if issubclass(entry, (Exception, Enum)):
        return
    for owner in reversed(entry.__mro__):
        if not owner.__module__.startswith("fairlead") or (
            owner is not entry and owner in entry.__bases__[1:]
        ):
            continue
        for name, member in vars(owner).items():
            if (
                not name.startswith("_")
                and inspect.isfunction(member)
                and vars(entry).get(name, member) is member
            ):
                yield name, member


def _fields(entry: type) -> Iterator[list[str]]:
    """Yield attributes with their field docstrings, and properties with their docstrings."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(entry))).body
    assert isinstance(definition, ast.ClassDef)
    texts = field_texts(entry)
    for node in definition.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and issubclass(entry, Enum):
            target = node.targets[0]
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        kind = (
            f": {ast.unparse(node.annotation)}"
            if isinstance(node, ast.AnnAssign)
            else f" = {ast.unparse(node.value)}"
        )
        yield [code(target.id + kind.replace("|", "or")), texts.get(target.id, "")]
    for name, member in vars(entry).items():
        if isinstance(member, property) and not name.startswith("_"):
            yield [code(name), " ".join((member.__doc__ or "").split())]


def _signature(name: str, member: Any) -> str:
    signature = inspect.signature(member)
    shown = [each for each in signature.parameters.values() if each.name != "self"]
    lines = [f"    {each},\n" for each in map(str, shown)]
    if any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in shown):
        first = next(place for place, each in enumerate(shown) if each.kind is inspect.Parameter.KEYWORD_ONLY)
        lines.insert(first, "    *,\n")
    text = f"{name}(\n{''.join(lines)})" if lines else f"{name}()"
    returned = signature.return_annotation
    arrow = "" if returned in (inspect.Signature.empty, "None", None) else f" -> {returned}"
    prefix = "async " if inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) else ""
    # Annotations are strings, which Python shows in quotes.
    return re.sub(r": '([^']*)'", r": \1", f"```text\n{prefix}{text}{arrow}\n```")


def _words(docstring: str | None) -> str:
    text = inspect.cleandoc(docstring or "")
    paragraphs = re.split(r"\n\n", text)
    return "\n\n".join(
        f"```text\n{textwrap.dedent(each)}\n```" if each.startswith("    ") else each for each in paragraphs
    )


def _shown(default: object) -> str:
    if isinstance(default, Codec):
        return default.name.lower()
    return ", ".join(default) if isinstance(default, tuple) else str(getattr(default, "value", default))


def _retries() -> str:
    backoff = ConnectionSettings().backoff
    kinds = [f"`{kind.value}`" for kind in ProblemKind if kind.retryable]
    text = RETRIES.format(
        initial=backoff.seconds_initial,
        longest=backoff.seconds_max,
        retried=" or ".join(kinds),
        shortest_pauses=" | ".join(f"{backoff.seconds(failures, 0.0):g} s" for failures in range(1, 6)),
        longest_pauses=" | ".join(f"{backoff.seconds(failures, 1.0):g} s" for failures in range(1, 6)),
    )
    for title, client, settings in (
        ("Connections", fairlead.Producer, ConnectionSettings),
        ("Producer", fairlead.Producer, ProducerSettings),
        ("Consumer", fairlead.Consumer, ConsumerSettings),
    ):
        meanings = {each[0].strip("`").partition(":")[0]: each[1] for each in _fields(settings)}
        rows = [
            [*_argument(client, field.name, field.default), meanings[field.name]]
            for field in dataclasses.fields(settings)
        ]
        text += f"\n## {title}\n\n{table(['argument', 'default', 'meaning'], rows)}"
    return text + "\nSettings without an argument cannot be changed.\n"


def _argument(client: type, setting: str, default: object) -> tuple[str, str]:
    """Return name and default of the argument that sets a setting, as written in a program."""
    name = ARGUMENTS.get(setting) or setting.replace("_seconds", "")
    taken = inspect.signature(client).parameters.get(name)
    if taken is not None:
        return code(name), code(repr(taken.default).replace("'", '"'))
    return f"{name.replace('_', ' ')} (no argument)", f"{_shown(default)}{' s' if name != setting else ''}"
