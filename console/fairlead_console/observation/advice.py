"""Problems of a cluster, each with what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.health import stuck
from fairlead_console.figures import silence_text
from fairlead_console.observation.picture import Picture


@dataclass(frozen=True, slots=True)
class Advice:
    """A problem, the command that shows more about it or ends it, and the page with its objects."""

    sentence: str
    command: str
    path: str


def problems(picture: Picture) -> Sequence[Advice]:
    """Return the problems of the cluster, the most urgent first; a healthy cluster has none."""
    health = picture.health
    found = []
    if health.controller is None:
        found.append(
            _at_brokers("The cluster has no controller, so nothing can be changed.", "cluster health")
        )
    if health.gone:
        verb, them = ("does", "it") if len(health.gone) == 1 else ("do", "them")
        text = f"{_brokers(health.gone).capitalize()} {verb} not run: start {them} again."
        found.append(_at_brokers(text, "broker list"))
    if picture.silent:
        text = f"{silence_text(picture.silent)}: check the process and its network."
        found.append(_at_brokers(text, "broker reports"))
    if picture.full_disks:
        brokers = _brokers(picture.full_disks)
        text = f"No space is left on the disk of {brokers}, so records are refused: free it, or lower retention.bytes."
        found.append(_at_brokers(text, "broker reports"))
    if health.without_leader:
        found.append(_at_topics(f"{_partitions(health.without_leader)} without a leader cannot be used."))
    if health.under_min_isr:
        refusing = _partitions(health.under_min_isr)
        found.append(
            _at_topics(f"{refusing} cannot accept records with acks=all: too few replicas are in sync.")
        )
    elif health.under_replicated:
        behind = _partitions(health.under_replicated)
        found.append(_at_topics(f"Not all replicas of {behind} are in sync yet."))
    found += [
        _at_brokers(_begun(stuck(each.broker, each.immovable)), f"broker undrain {each.broker}")
        for each in health.drains
        if each.immovable
    ]
    return found


def warnings(picture: Picture) -> Sequence[Advice]:
    """Return what will become a problem of a cluster that may still be healthy."""
    if not picture.low_disks:
        return []
    brokers = _brokers(picture.low_disks)
    text = f"Little space is left on the disk of {brokers}: add space, or lower retention.bytes."
    return [_at_brokers(text, "broker reports")]


def _at_brokers(sentence: str, command: str) -> Advice:
    return Advice(sentence, f"fairlead {command}", "/brokers")


def _at_topics(sentence: str) -> Advice:
    return Advice(sentence, "fairlead cluster health", "/topics?sort=state")


def _begun(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _brokers(ids: Sequence[int]) -> str:
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"
