"""Report words that make a sentence hard to understand, each with a replacement.

    python .ci/prose.py [PATH ...]

The check reads every tracked file outside of `SKIPPED`, or only the files and folders that are given. The check prints
`file:line: word: sentence` for each word found, and exits with 1 if a word was found. The table `WORDS` lists the words
and their replacements.

Sentences are read from Python docstrings, field docstrings and comments, from texts of the product and its tools (log
events, problems, help), from comments in YAML, TOML, Dockerfile, Makefile and shell files, and from Markdown outside of
code.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]

Kind = Literal["markdown", "docstring", "field", "comment", "text"]
PAGES: Final = frozenset[Kind](("markdown",))
CODE: Final = frozenset[Kind](("docstring", "field", "comment", "text"))
EVERYWHERE: Final = PAGES | CODE
DOCSTRING: Final = frozenset[Kind](("docstring",))
FIELD: Final = frozenset[Kind](("field",))

PERSONS: Final = (
    "administrator", "attacker", "author", "caller", "contributor", "developer", "maintainer", "newcomer", "operator",
    "people", "person", "reader", "stranger", "team", "user", "you",
)  # fmt: skip
"""Nouns that "who" may follow: people, and the caller of a function."""

SKIPPED: Final = (
    "CHANGELOG.md", "docs/changes/", "docs/proof/", "docs/reference/record-batch-vectors/",
    ".ci/prose.py",
)  # fmt: skip
"""Files that the check skips: dated records, which are not rewritten, and the table of words itself."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that the prose of this repository avoids."""

    name: str
    """Name under which the word is reported."""
    pattern: str
    """Regular expression that finds the word, regardless of case."""
    instead: str
    """Suggestion for a replacement."""
    kinds: frozenset[Kind] = EVERYWHERE
    """Kinds of sentences in which the word is searched for."""


_PERSON_BEFORE_WHO: Final = "".join(
    rf"(?<!\b{noun} )(?<!\b{noun}s )(?<!\b{noun}, )(?<!\b{noun}s, )" for noun in PERSONS
)

WORDS: Final = (
    Word("who", _PERSON_BEFORE_WHO + r"\bwho\b(?!-)", "the noun: broker, member, request; or `that` after it"),
    Word("whoever", r"\bwhoever\b", "the noun: the next request, a broker that ..."),
    Word("whom", r"\bwhom\b", "the noun: broker, member, request"),
    Word("nobody", r"\bnobody\b", "no broker, no caller, nothing; for people: no one"),
    Word("somebody", r"\bsomebody\b", "another broker, a caller; for people: a person"),
    Word("everybody", r"\beverybody\b", "every broker, all members; for people: everyone"),
    Word("the one that", r"\bthe ones? that\b", "the noun: the batch that ..."),
    Word("those that", r"\bthose (that|which)\b", "the noun: the records that ..."),
    Word("that which", r"\bthat which\b", "the noun"),
    Word("what came", r"\bwhat (came|comes|goes|went)\b", "the noun: the received records"),
    Word("of before", r"\bof before\b", "previous, earlier"),
    Word("anew", r"\banew\b", "again; or create, restart, reset"),
    Word("by now", r"\bby now\b", "already, since then, today"),
    Word("meanwhile", r"\b(?:in the )?meanwhile\b", "while it runs, in between, at the same time", CODE),
    Word("is told", r"\b(?:is|are|was|were|be|been|being) told\b", "is reported, is logged, is notified; learns"),
    Word("is heard", r"\b(?:is|are|was|were|be|been|being) (?:un)?heard\b", "is received, answers, sends heartbeats"),
    Word("in the same row", r"\bin the same row\b", "in the same queue, in the same order"),
    Word("lets + verb", r"\b(?:let leave|let go of)\b", "send, release"),
    Word("Hear", r"^Hear\b", "Update ..., Handle ..., Apply ...", DOCSTRING),
    Word("Tell", r"^Tell\b", "Return ..., Notify ..., Report ...", DOCSTRING),
    Word("Have", r"^Have\b", "a verb that says what happens: Send ..., Start ...", DOCSTRING),
    Word("Say", r"^Say (?:that|whether|what|how|where|which)\b", "Return ..., Report ...", DOCSTRING),
    Word("Of", r"^Of ", "a noun phrase, or a whole sentence", FIELD),
    Word("Which", r"^(?:By |In |On |From |To |At )?Which ", "a noun phrase, or a whole sentence", FIELD),
    Word("Where", r"^Where(?:ver)? ", "a noun phrase, or a whole sentence", FIELD),
    Word("With", r"^With(?:out)? ", "a noun phrase, or a whole sentence", FIELD),
    Word("Whose", r"^Whose ", "a noun phrase, or a whole sentence", FIELD),
    Word("That", r"^That (?!is\b)", "a noun phrase, or a whole sentence", FIELD),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a file."""

    kind: Kind
    """Kind of place in which the sentence was found, which decides which words are searched for."""
    line: int
    """Line on which the paragraph of the sentence begins, counted from 1."""
    first: bool
    """Whether the sentence is the first sentence of its docstring or comment."""
    text: str
    """Text of the sentence on one line."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A word that was found in a sentence."""

    path: str
    """Path of the file relative to the root of the repository."""
    line: int
    """Line on which the paragraph begins, counted from 1."""
    word: Word
    """The word that was found."""
    text: str
    """The sentence that contains the word."""

    def __str__(self) -> str:
        """Return the line that the check prints."""
        return f"{self.path}:{self.line}: {self.word.name}: {self.text} [write: {self.word.instead}]"


def findings(path: str, text: str) -> list[Finding]:
    """Return the words found in a file; the result is empty for a file of an unknown kind."""
    return [
        Finding(path, sentence.line, word, sentence.text)
        for sentence in sentences(path, text)
        for word in WORDS
        if sentence.kind in word.kinds
        and (sentence.first or not word.pattern.startswith("^"))
        and re.search(word.pattern, sentence.text, re.IGNORECASE)
    ]


def sentences(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a file."""
    name = path.rpartition("/")[2]
    if name.endswith(".md"):
        yield from _markdown(text)
    elif name.endswith(".py"):
        yield from _python(text, texts=not path.startswith("tests/"))
    elif name.endswith((".yaml", ".yml", ".toml", ".sh", "Dockerfile")) or name in {"Makefile", "run"}:
        yield from _hash_comments(text)


def _markdown(text: str) -> Iterator[Sentence]:
    """Yield the sentences outside code: in paragraphs, list items, and the cells of tables."""
    fenced = False
    paragraph: list[str] = []
    start = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        fence = stripped.startswith(("```", "~~~"))
        new_item = re.match(r"(?:[-*+]|\d+\.|#+|\||!!!) ?", stripped) is not None
        if paragraph and (fence or not stripped or new_item):
            yield from _split("markdown", start, " ".join(paragraph))
            paragraph = []
        if fence:
            fenced = not fenced
        elif stripped and not fenced:
            start = start if paragraph else number
            paragraph.append(stripped)


def _python(text: str, *, texts: bool) -> Iterator[Sentence]:
    """Yield the sentences of docstrings, field docstrings and comments, and with `texts` also of string literals."""
    tree = ast.parse(text)
    documents = dict(_docstrings(tree))
    for document, kind in documents.items():
        yield from _paragraphs(kind, document.lineno, str(document.value))
    yield from _comments(text)
    if not texts:
        return
    pieces = {
        id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield from _text(node.lineno, "".join(_piece(value) for value in node.values))
        elif isinstance(node, ast.Constant) and id(node) not in pieces and node not in documents:
            yield from _text(node.lineno, node.value)


def _docstrings(tree: ast.AST) -> Iterator[tuple[ast.Constant, Kind]]:
    """Yield string statements: docstrings, which begin a body, and field docstrings, which follow assignments."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        previous: ast.stmt | None = None
        for statement in body:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value, "field" if isinstance(previous, ast.Assign | ast.AnnAssign) else "docstring"
            previous = statement


def _piece(node: ast.expr) -> str:
    """Return a part of an f-string as text, in which each value counts as one word."""
    return str(node.value) if isinstance(node, ast.Constant) else "0"


def _text(line: int, value: object) -> Iterator[Sentence]:
    """Yield the sentences of a literal of at least three words."""
    if isinstance(value, str) and re.search(r"[a-z]+ [\w`'\"-]+ [a-z]+", value):
        yield from _paragraphs("text", line, value)


def _comments(text: str) -> Iterator[Sentence]:
    """Yield the sentences of Python comments; comments on consecutive lines are one comment."""
    block: list[str] = []
    start, last = 0, -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != last + 1:
            yield from _split("comment", start, " ".join(block))
            block = []
        start, last = (start if block else token.start[0]), token.start[0]
        block.append(token.string.lstrip("# "))
    yield from _split("comment", start, " ".join(block))


def _hash_comments(text: str) -> Iterator[Sentence]:
    """Yield the sentences of comments that begin with `#`, and of the help texts of Makefile targets."""
    block: list[str] = []
    start = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        match = re.search(r"(?:^|\s)#+ (.*)", line)
        if block and not (match and line.lstrip().startswith("#")):
            yield from _split("comment", start, " ".join(block))
            block = []
        if match:
            start = start if block else number
            block.append(match[1])


def _paragraphs(kind: Kind, line: int, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text with several paragraphs; only the first sentence of the text is `first`."""
    at = line
    for position, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        for sentence in _split(kind, at, paragraph):
            yield sentence if position == 0 else Sentence(kind, at, first=False, text=sentence.text)
        at += paragraph.count("\n") + 2


def _split(kind: Kind, line: int, text: str) -> Iterator[Sentence]:
    """Yield the sentences of one paragraph, in which quoted code is replaced by the word `code`."""
    plain = re.sub(r"``.+?``|`[^`]*`", "`code`", " ".join(text.split()))
    for position, part in enumerate(re.split(r"(?<=[.!?;|]) +", plain)):
        if part:
            yield Sentence(kind, line, first=position == 0, text=part)


def tracked() -> list[str]:
    """Return the paths of all tracked files, and of new files that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [name for name in names if not name.startswith(SKIPPED) and (ROOT / name).is_file()]


def below(path: str, places: list[str]) -> bool:
    """Return whether a path is one of the given files or is in one of the given folders."""
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def main(arguments: list[str]) -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", help="files and folders to read instead of every tracked file")
    places = parser.parse_args(arguments).paths
    found = [
        finding
        for name in tracked()
        if not places or below(name, places)
        for finding in findings(name, (ROOT / name).read_text(encoding="utf-8", errors="replace"))
    ]
    for finding in found:
        print(finding, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
