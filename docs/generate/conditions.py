"""Page of all conditions, with the meaning and the remedy for each type and reason."""

from __future__ import annotations

from page_text import GENERATED, code, codes, table

from fairlead_api.resources.condition_definitions import ConditionType
from fairlead_api.resources.conditions import CONDITIONS

TEXT = """# Conditions

Conditions in the status of a [Cluster](cluster-resource.md), a [Topic](topic-resource.md), a
[User](user-resource.md), a [Rebalance](rebalance-resource.md), an [EtcdBackup](etcdbackup-resource.md) and a
[Link](link-resource.md), and the remedy for each reason. Start with the listing, which shows the reason for `Ready`;
the message of each condition has the details:

```bash
kubectl get fairlead --all-namespaces
kubectl describe flc main
```

A condition that is bad or neutral when True is present only while it is True. `lastTransitionTime` changes when a
status changes, not when a reason or message changes. A status describes the generation in `observedGeneration`; while
`observedGeneration` is lower than `metadata.generation`, the operator has not read the newest spec yet.

"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path under docs/reference."""
    rows = [
        [f"[`{each.name}`](#{each.name.lower()})", codes(each.kinds), each.polarity, each.meaning]
        for each in CONDITIONS.values()
    ]
    text = TEXT + table(["condition", "of", "is", "meaning"], rows)
    return {"conditions.md": GENERATED + text + "".join(map(_section, CONDITIONS.values()))}


def _section(condition: ConditionType) -> str:
    rows = [
        [
            f'<a id="{condition.name.lower()}-{reason.name.lower()}"></a>{code(reason.name)}',
            codes(reason.statuses),
            codes(kind for kind in reason.kinds if kind in condition.kinds),
            reason.meaning,
            reason.next_step,
        ]
        for reason in condition.reasons
    ]
    return f"\n## {condition.name}\n\n{condition.meaning}\n\n" + table(
        ["reason", "status", "of", "meaning", "what to do"], rows
    )
