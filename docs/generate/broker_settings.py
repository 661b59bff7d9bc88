"""Page of a broker's settings: flags, environment variables and the configuration file."""

from __future__ import annotations

import inspect

from page_text import GENERATED, code, field_texts, table

from fairlead_broker import commands
from fairlead_broker.settings import BrokerSettings

TEXT = """# Settings of a broker

Settings that a broker reads at startup, like Kafka's `server.properties`. [Configuration keys](configuration.md), which
can also be changed later, are described separately. Each setting is an environment variable and a member of the
configuration file: `peer_listen` is the variable `FAIRLEAD_PEER_LISTEN`. Most settings are also flags of
`fairlead broker start`, such as `--peer-listen`. Flags override variables, variables override the file, and the file
overrides the defaults.

`--config`, or `FAIRLEAD_CONFIG`, is the path of the file, in TOML or YAML. Unknown settings in the file are
refused. Example:

```toml
id = 1
data = "/var/lib/fairlead"
listen = "0.0.0.0:9520"
advertise = "broker-1.example:9520"
peer_listen = "0.0.0.0:9521"
security = "open"
peer_advertise = "broker-1.example:9521"
rack = "zone-a"
etcd = "https://etcd-1.example:2379,https://etcd-2.example:2379"
etcd_ca = "/etc/fairlead/ca.pem"

[config_values]
"retention.ms" = 86400000
"segment.bytes" = 268435456

[limits]
produce_bytes_max = 134217728
```

"""
END = """
The variable of a member of `limits` has two underscores, such as `FAIRLEAD_LIMITS__PRODUCE_BYTES_MAX`. The variable of
`config_values` contains a JSON object.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    # `id` is a Python builtin, so the parameter of the setting `id` has a different name.
    flags = {"id", *inspect.signature(commands.broker_start).parameters}
    texts = field_texts(BrokerSettings)
    rows = []
    for name in BrokerSettings.model_fields:
        meaning = texts[name]
        if name == "limits":
            meaning += " [Limits](limits.md) describes each limit."
        flag = code(f"--{name.replace('_', '-')}") if name in flags else ""
        rows.append([f'<a id="{name}"></a>{code(name)}', flag, _default(name), meaning])
    text = TEXT + table(["setting", "flag", "default", "meaning"], rows) + END
    return {"broker-settings.md": GENERATED + text}


def _default(name: str) -> str:
    field = BrokerSettings.model_fields[name]
    if field.default in (None, ()) or field.default_factory is not None:
        return ""
    if name == "listen":
        return code(",".join(map(str, field.default)))
    return code("false" if field.default is False else str(field.default))
