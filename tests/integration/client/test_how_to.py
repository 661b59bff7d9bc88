"""The how-to page of the SDK: every example runs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/how-to/sdk.md"
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<output>.*?)```)?", re.DOTALL)


async def test_every_example_of_the_how_to_runs_and_prints_what_the_page_says(bootstrap: str) -> None:
    """Every example of the page runs in order in one namespace and prints the page's output."""
    names: dict[str, object] = {}
    examples = list(EXAMPLE.finditer(PAGE.read_text()))
    assert len(examples) >= 8
    for example in examples:
        code = example["code"].replace("http://127.0.0.1:9520", bootstrap)
        compiled = compile(code, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if compiled.co_flags & inspect.CO_COROUTINE:
                await eval(compiled, names)
            else:
                # A blocking wait must not block the event loop of the broker, which is the test's loop.
                await asyncio.to_thread(exec, compiled, names)

        assert printed.getvalue() == (example["output"] or ""), code
