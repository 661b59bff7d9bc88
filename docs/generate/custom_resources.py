"""Pages of the custom resources: every field in the definitions, object by object, with its validation rules."""

from __future__ import annotations

from page_text import GENERATED, code, codes, table
from pydantic import JsonValue  # noqa: TC002 - a top-level import shows the dependency

from fairlead_api.resources.condition_definitions import ResourceKind
from fairlead_api.resources.resource import API_VERSION
from fairlead_operator.schema.definitions import DEFINITIONS, Definition
from fairlead_operator.schema.structural import INT_OR_STRING, PRESERVE, RULES, Schema

FILES = {
    ResourceKind.CLUSTER: "cluster-resource.md",
    ResourceKind.TOPIC: "topic-resource.md",
    ResourceKind.REBALANCE: "rebalance-resource.md",
    ResourceKind.ETCD_BACKUP: "etcdbackup-resource.md",
    ResourceKind.USER: "user-resource.md",
    ResourceKind.LINK: "link-resource.md",
}
ABOUT = {
    ResourceKind.CLUSTER: """A Fairlead cluster on Kubernetes: brokers in pools, the etcd that coordinates them, and the
listeners for clients. [Configuration](configuration.md) describes the keys of `config`.
""",
    ResourceKind.TOPIC: """One topic of a Cluster. The operator changes the topic to match the resource, never
the resource to match the topic. The operator does not change topics without a resource.
[Configuration](configuration.md) describes the keys of `config`.
""",
    ResourceKind.REBALANCE: """One throttled move of partitions to other brokers, with a proposal and its approval.
[Rebalancing](../how-to/kubernetes-rebalance.md) describes its use.
""",
    ResourceKind.ETCD_BACKUP: """Snapshots of the managed etcd of a Cluster on a volume, by schedule or once.
[Backing up etcd](../how-to/kubernetes-backup.md) describes its use and a restore.
""",
    ResourceKind.LINK: """Mirrors of topics of another cluster in a Cluster, and their promotion.
[Links on Kubernetes](../how-to/kubernetes-links.md) describes its use.
""",
    ResourceKind.USER: """A principal of a Cluster with its access rules and, without a service account, its token.
[Security on Kubernetes](../how-to/security-on-kubernetes.md) describes its use.
""",
}
LISTING = """
Use the short name in commands, because other API groups also have a kind `{singular}`: `kubectl get {short}`. \
`kubectl get fairlead` lists all resources of Fairlead. Unknown fields are refused by `kubectl apply` and `create` \
(strict field validation); `kubectl patch` only warns about them. Values that a schema cannot check, since they \
depend on the cluster, are reported as [conditions](conditions.md).

"""


def pages() -> dict[str, str]:
    """Return the text of each page by its path under docs/reference."""
    return {FILES[definition.kind]: GENERATED + _page(definition) for definition in DEFINITIONS}


def _page(definition: Definition) -> str:
    schema = definition.schema()
    columns = [
        [column.name, code(column.path), column.description + (" (wide)" if column.priority else "")]
        for column in definition.columns
    ]
    text = f"# {definition.kind}\n\n{code(API_VERSION)}, kind {code(definition.kind)}, short name "
    text += f"{code(definition.short_name)}. {ABOUT[definition.kind]}"
    text += LISTING.format(singular=definition.kind.lower(), short=definition.short_name)
    text += table(["column", "from", "meaning"], columns)
    text += _broken_rules(schema, "the whole object")
    fields = _fields(schema)
    return text + _object(fields["spec"], "spec") + _object(fields["status"], "status")


def _object(schema: Schema, path: str) -> str:
    fields = _fields(schema)
    required = schema.get("required", [])
    assert isinstance(required, list)
    rows = [
        [code(name), _type(field), _default(field, required=name in required), _meaning(field)]
        for name, field in fields.items()
    ]
    text = f"\n## {path}\n\n{schema.get('description', '')}\n\n" + table(
        ["field", "type", "default", "meaning"], rows
    )
    text += _broken_rules(schema, code(path))
    for name, field in fields.items():
        inner, suffix = _inside(field)
        if _fields(inner):
            described = {**inner, "description": field.get("description", "")}
            text += _object(described, f"{path}.{name}{suffix}")
    return text


def _fields(schema: Schema) -> dict[str, Schema]:
    properties = schema.get("properties", {})
    assert isinstance(properties, dict)
    return {name: field for name, field in properties.items() if isinstance(field, dict)}


def _inside(schema: Schema) -> tuple[Schema, str]:
    items = schema.get("items")
    return (items, "[]") if isinstance(items, dict) else (schema, "")


def _type(schema: Schema) -> str:
    items, values = schema.get("items"), schema.get("additionalProperties")
    if INT_OR_STRING in schema:
        return "number or string"
    if isinstance(items, dict):
        return f"list of {_type(items)}"
    if isinstance(values, dict):
        return f"map of {_type(values)}"
    if PRESERVE in schema:
        return "any fields"
    return {"date-time": "time"}.get(str(schema.get("format")), str(schema["type"]))


def _default(schema: Schema, *, required: bool) -> str:
    if required:
        return "(required)"
    default = schema.get("default")
    if isinstance(default, bool):
        return code(str(default).lower())
    return code(str(default)) if isinstance(default, str | int) else ""


def _meaning(schema: Schema) -> str:
    text = str(schema.get("description", ""))
    choices = schema.get("enum")
    facts = []
    if isinstance(choices, list):
        facts.append(f"one of {codes(map(str, choices))}")
    facts += [
        f"{word} {schema[key]:,}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if isinstance(schema.get(key), int)
    ]
    facts += [rule for part in _parts(schema) for rule in _messages(part)]
    return text + (f" ({'; '.join(facts)})" if facts else "")


def _parts(schema: Schema) -> list[Schema]:
    """Return the schema of a field and, unless the field is an object with its own table, of its elements."""
    inner = schema.get("items", schema.get("additionalProperties"))
    if isinstance(inner, dict) and not _fields(inner):
        return [schema, inner]
    return [schema] if not _fields(schema) else []


def _messages(schema: Schema) -> list[str]:
    rules = schema.get(RULES, [])
    assert isinstance(rules, list)
    return [str(rule["message"]) for rule in rules if isinstance(rule, dict)]


def _broken_rules(schema: JsonValue, subject: str) -> str:
    messages = _messages(schema) if isinstance(schema, dict) else []
    if not messages:
        return ""
    listed = "".join(f"- {message}\n" for message in messages)
    return f"\nValidation rules for {subject}, each as the message of the refusal:\n\n{listed}"
