"""Page of the APIs of Kafka's protocol that a broker answers."""

from __future__ import annotations

from page_text import GENERATED, code, table

from fairlead_broker.kafka.protocol.apis import APIS
from fairlead_broker.kafka.protocol.errors import ERRORS, FAMILY_ERRORS, Family

TEXT = """# Kafka's protocol

APIs of Kafka's protocol that a broker with a [Kafka listener](../how-to/kafka-clients.md) answers, and the error of
each problem. The broker states the same versions in its answer to ApiVersions. A request in another version, or of an
API that is not listed, closes the connection.

"""
ERRORS_TEXT = """
## Errors

A [problem](problems/index.md) that HTTP clients get with this code is one of Kafka's errors for Kafka's clients. The
message of the problem is in the field `error_message`, where the version of the answer has the field.

"""
FAMILY_NAMES = {
    Family.DATA: "records",
    Family.GROUP: "groups",
    Family.TOPIC: "administration of topics",
    Family.ADMIN: "other administration",
    Family.TRANSACTION: "transactions",
}


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    apis = [
        [api.name, str(api.key.value), f"{api.first} to {api.last}", api.note]
        for api in sorted(APIS.values(), key=lambda each: each.name)
    ]
    errors = [[code(name), _errors(name)] for name in sorted(ERRORS)]
    return {
        "kafka-protocol.md": GENERATED
        + TEXT
        + table(["API", "key", "versions", "notes"], apis)
        + ERRORS_TEXT
        + table(["problem", "Kafka's error"], errors)
    }


def _errors(name: str) -> str:
    """Return the error of a problem, followed by the errors that families of calls have instead."""
    others = [
        f"{code(errors[name].name)} for {FAMILY_NAMES[family]}"
        for family, errors in FAMILY_ERRORS.items()
        if name in errors
    ]
    return "; ".join([code(ERRORS[name].name), *others])
