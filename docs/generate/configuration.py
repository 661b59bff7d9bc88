"""Page of all configuration keys."""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

from page_text import GENERATED, code, codes, table

from fairlead_api.configuration.keys import CLUSTER_KEYS, TOPIC_KEYS, ConfigKey

TEXT = """# Configuration

Keys of topics have Kafka's names, types and defaults (release 4.3); where a default differs, the meaning says so.
`durability`, `replication.mode` and `quorum.write` are Fairlead's own. The most specific value applies: the value
of the topic, then of the broker, then of the cluster, then the default; `GET /v1/topics/{topic}` shows each value with its source.

| of | on the command line | over HTTP (null resets it) |
| --- | --- | --- |
| a topic | `fairlead topic create` and `alter` with `-c KEY=VALUE`; `alter --unset KEY` | `POST /v1/topics`, `PATCH /v1/topics/{topic}` |
| a broker | `fairlead cluster config --broker 1 -c KEY=VALUE` | `PATCH /v1/brokers/{broker}/config` |
| the cluster | `fairlead cluster config -c KEY=VALUE` | `PATCH /v1/cluster/config` |

A changed value takes effect within seconds, without a restart. A value that is marked as not supported yet is refused with
[`invalid_config`](problems/invalid_config.md) and never stored. A broker reads a key that is not dynamic only at
startup, and only from its own settings.

"""


CLUSTER_TEXT = """The settings of a broker (`config_values` in [its configuration file](broker-settings.md)) can set keys with the scope \
`broker`. A topic
key with this scope sets the default for the topics on the broker. Values that are set through the API override the file.

"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    text = TEXT + "## Keys of a topic\n\n" + _keys(list(TOPIC_KEYS.values()))
    text += "\n## Keys of brokers and the cluster\n\n" + CLUSTER_TEXT
    return {"configuration.md": GENERATED + text + _keys(list(CLUSTER_KEYS.values()))}


def _keys(keys: list[ConfigKey]) -> str:
    rows = [
        [
            f'<a id="{key.name}"></a>{code(key.name)}',
            f"{key.type}{f', {key.unit}' if key.unit and not key.name.endswith(key.unit) else ''}",
            _range(key),
            code(key.default) if key.default is not None else key.default_rule,
            codes(key.scopes),
            "yes" if key.dynamic else "no",
            key.explanation,
        ]
        for key in keys
    ]
    return table(["key", "type", "allowed", "default", "scope", "dynamic", "meaning"], rows)


def _range(key: ConfigKey) -> str:
    if not key.choices:
        return key.allowed
    later = [choice for choice in key.choices if choice not in key.choices_supported]
    return codes(key.choices_supported) + (f"; not supported yet: {codes(later)}" if later else "")
