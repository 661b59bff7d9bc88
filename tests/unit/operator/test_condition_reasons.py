from __future__ import annotations

import ast

import pytest

import checkout
from fairlead_api.resources.condition_definitions import ResourceKind
from fairlead_api.resources.conditions import CONDITIONS
from fairlead_api.resources.ready_conditions import NOT_RECONCILED

WORDS = {
    ResourceKind.TOPIC: "topic",
    ResourceKind.REBALANCE: "rebalanc",
    ResourceKind.ETCD_BACKUP: "etcd_backup",
    ResourceKind.USER: "user",
    ResourceKind.LINK: "link",
}
"""For each kind except Cluster, a part of the paths of its modules; all other modules belong to Cluster."""


def words_about(kind: ResourceKind) -> frozenset[str]:
    """Return every string constant in the operator's modules for one kind."""
    sources = [path for path in checkout.python_files("operator") if "schema" not in path.parts]
    about = {each: [path for path in sources if WORDS[each] in str(path)] for each in WORDS}
    shared = [path for path in sources if path.stem == "findings"]
    others = [path for path in sources if all(path not in paths for paths in about.values())]
    chosen = [*about[kind], *shared] if kind in WORDS else others
    trees = (ast.parse((checkout.ROOT / path).read_text()) for path in chosen)
    nodes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(node.value for node in nodes if isinstance(node.value, str))


@pytest.mark.parametrize("kind", list(ResourceKind))
def test_every_reason_of_the_catalogue_is_given_by_the_operator(kind: ResourceKind) -> None:
    """Every documented condition reason occurs in the operator's sources."""
    given = words_about(kind) | {NOT_RECONCILED}
    promised = [
        f"{type_.name}/{reason.name}"
        for type_ in CONDITIONS.values()
        for reason in type_.reasons
        if kind in type_.kinds and kind in reason.kinds and reason.name not in given
    ]

    assert promised == []
