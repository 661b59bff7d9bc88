"""Pages of the problem catalogue: one page for each code, and the index."""

from __future__ import annotations

from page_text import GENERATED, code, table

from fairlead_api.problems import CATALOGUE, ProblemDefinition, ProblemKind, SideEffect

INDEX_TEXT = """# Problems

Every refusal is an RFC 9457 document of type `application/problem+json`. `code` identifies the problem, `kind`
determines the reaction of the client, and `side_effect` states whether the request may nevertheless have changed
something; further members contain data of the code. Every broker serves the page of a code at `/problems/<code>`. A
client that receives an unknown code reacts to the `kind`.

"""

NEXT_MOVES = {
    ProblemKind.RETRY: "send the same request again later, with back-off",
    ProblemKind.REFRESH: "read the metadata again, then send the request again",
    ProblemKind.FIX: "change the request; the same request fails again",
    ProblemKind.FENCED: "stop: a newer producer, member or broker took over",
    ProblemKind.DATA_LOSS: "decide what to do about records that are lost or whose fate is unknown",
    ProblemKind.BUG: "report it",
}
SIDE_EFFECTS = {
    SideEffect.NONE: "nothing was changed, unless the problem itself says `maybe`",
    SideEffect.MAYBE: "the request may have taken effect",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its path under docs/reference."""
    problems = {f"problems/{name}.md": GENERATED + _page(entry) for name, entry in CATALOGUE.items()}
    return {**problems, "problems/index.md": GENERATED + INDEX_TEXT + _kinds() + "\n" + _all()}


def _page(entry: ProblemDefinition) -> str:
    facts = [
        ["status", str(entry.status)],
        ["kind", f"{code(entry.kind)}: {NEXT_MOVES[entry.kind]}"],
        ["retryable", "yes" if entry.retryable else "no"],
        ["side effect", f"{code(entry.side_effect)}: {SIDE_EFFECTS[entry.side_effect]}"],
    ]
    text = f"# {entry.code}\n\n{entry.title}.\n\n{table(['', ''], facts)}\n## What happened\n\n{entry.explanation}\n"
    text += f"\n## What to do\n\n{entry.next_step}\n"
    if entry.data_members:
        members = [[code(member.name), member.explanation] for member in entry.data_members]
        text += "\n## Data\n\nMembers that the problem may carry:\n\n" + table(["member", "meaning"], members)
    return text


def _kinds() -> str:
    rows = [[code(kind), move, "yes" if kind.retryable else "no"] for kind, move in NEXT_MOVES.items()]
    return table(["kind", "next move", "retryable"], rows)


def _all() -> str:
    entries = sorted(CATALOGUE.values(), key=lambda entry: (entry.status, entry.code))
    rows = [
        [str(entry.status), f"[`{entry.code}`]({entry.code}.md)", code(entry.kind), entry.title]
        for entry in entries
    ]
    return table(["status", "code", "kind", "meaning"], rows)
