"""Text types with patterns and maximum lengths: names of objects, topics and configuration keys, addresses.

The patterns and lengths are only in the schema; the operator does not check stored strings again.
"""

from __future__ import annotations

from typing import Annotated, Final

from fairlead_api.identifiers import NAME_LENGTH_MAX
from fairlead_api.resources.schema_rules import Rule, kubernetes

CONFIG_KEYS_MAX: Final = 64
"""Maximum number of keys of a `config`, which is more than the number of keys in the catalogue."""
CONFIG_VALUE_LENGTH_MAX: Final = 1024
KEY_LENGTH_MAX: Final = 128

ObjectName = Annotated[
    str,
    kubernetes(
        maxLength=253,
        minLength=1,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]
"""Name of a Kubernetes object."""
NamespaceName = Annotated[
    str, kubernetes(maxLength=63, minLength=1, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
]
"""Name of a namespace."""
TopicName = Annotated[
    str,
    kubernetes(
        Rule(
            f"self.matches('^[a-zA-Z0-9._-]{{1,{NAME_LENGTH_MAX}}}$') && self != '.' && self != '..'",
            f"a topic's name must be 1 to {NAME_LENGTH_MAX} of a-z, A-Z, 0-9, '.', '_' and '-', but not '.' or '..'",
        ),
        maxLength=NAME_LENGTH_MAX,
    ),
]
"""Name of a topic, by Kafka's rule."""
ConfigKeyName = Annotated[
    str,
    kubernetes(
        Rule(
            "self.matches('^[a-z0-9]+([._-][a-z0-9]+)*$')",
            "a configuration key must be written in lower case with dots, such as retention.ms",
        ),
        maxLength=KEY_LENGTH_MAX,
    ),
]
"""Configuration key, which may be unknown to the catalogue."""
Image = Annotated[str, kubernetes(maxLength=512, minLength=1, pattern=r"^\S+$")]
"""Container image, by name and tag or digest."""
Release = Annotated[str, kubernetes(maxLength=64, minLength=1, pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]*$")]
"""Release of Fairlead, such as `0.2.0`."""
ShortText = Annotated[str, kubernetes(maxLength=253)]
"""Name, id or word in a status."""
LongText = Annotated[str, kubernetes(maxLength=1024)]
"""Address, URL or reason in a status."""
LabelValue = Annotated[str, kubernetes(maxLength=63)]
LabelKey = Annotated[str, kubernetes(maxLength=317)]
AnnotationValue = Annotated[str, kubernetes(maxLength=4096)]

KEYS_WITHOUT_A_FORM: Final = Rule(
    "self.all(key, key.matches('^[a-z0-9]+([._-][a-z0-9]+)*$'))",
    "a configuration key must be written in lower case with dots, such as retention.ms",
)
ConfigMap = Annotated[
    dict[str, Annotated[str, kubernetes(maxLength=CONFIG_VALUE_LENGTH_MAX)]],
    kubernetes(KEYS_WITHOUT_A_FORM, maxProperties=CONFIG_KEYS_MAX),
]
"""Values by configuration key, which are always strings, since `kubectl apply` would remove a null."""
