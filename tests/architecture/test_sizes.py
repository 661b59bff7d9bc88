"""Files, functions and folders stay small enough to be read in one sitting."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import checkout

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_LINES_MAX = 900
REASON_LINES_MIN = 500
"""Number of lines above which a module's docstring must explain the module's length."""
MODULES_MAX = 20
"""Maximum number of modules in one folder, without its `__init__.py` and its `conftest.py`."""
FRAMES = ("__init__.py", "conftest.py")
FUNCTION_LINES_MAX = 60


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield every function of a module with its number of lines, from `def` to its last statement."""
    # Expressions are skipped: only statements contain functions, and most nodes of a module are expressions.
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        waiting += (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.expr))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None, "the parser numbers every line"
            yield node.name, node.end_lineno - node.lineno + 1


def test_no_file_is_long() -> None:
    """A Python file has at most 900 lines, and the docstring of a file with more than 500 gives the reason."""
    lengths = {path: len((checkout.ROOT / path).read_text().splitlines()) for path in checkout.python_files()}
    long = [path for path, lines in lengths.items() if lines > REASON_LINES_MIN]

    assert {str(path): lines for path, lines in lengths.items() if lines > FILE_LINES_MAX} == {}
    assert [str(path) for path in long if "file because" not in docstring(path)] == []


def docstring(path: Path) -> str:
    """Return the docstring of a module on one line."""
    return " ".join((ast.get_docstring(ast.parse((checkout.ROOT / path).read_text())) or "").split())


def test_no_folder_is_crowded() -> None:
    """A folder has no more modules than a reader can survey, in the product, its tests and its benchmarks."""
    folders = Counter(path.parent for path in checkout.python_files() if path.name not in FRAMES)

    assert {str(folder): count for folder, count in folders.items() if count > MODULES_MAX} == {}


@pytest.mark.slow
def test_no_function_is_long() -> None:
    """A function has at most 60 lines."""
    long = {
        f"{path}:{name}": lines
        for path in checkout.python_files()
        for name, lines in functions((checkout.ROOT / path).read_text())
        if lines > FUNCTION_LINES_MAX
    }

    assert long == {}


@pytest.mark.parametrize(("body_lines", "expected"), [(1, 2), (60, 61)])
def test_the_ruler_counts_every_line_of_a_function(body_lines: int, expected: int) -> None:
    """The length of a function includes its signature and its body."""
    source = "async def grow():\n" + "    call()\n" * body_lines

    assert list(functions(source)) == [("grow", expected)]


def test_the_ruler_sees_this_file() -> None:
    """The list of files contains this file, so that the list is not empty by mistake."""
    assert Path(__file__).relative_to(checkout.ROOT) in checkout.python_files()
