"""Each program on the page of delivery guarantees keeps its guarantee despite crashes; `make prove` causes more."""

from __future__ import annotations

import pytest

from recipe_crashes import RECIPES, Recipe, crashed_program, run
from recipe_page import programs

CRASHES = {"at_most_once.py": 8, "at_least_once.py": 8}
"""Number of crashes for each program that must lose or repeat a record."""
FEWER_CRASHES = 4
"""Number of crashes for every other program."""
SEED = 1
ALREADY_STORED = "is stored already: another worker reads orders-"
BEFORE_THE_RESULT = "                        order = price(json.loads(record.value))"
BEFORE_THE_TRANSACTION = '    place = {"topic": batch.topic, "partition": batch.partition}'


def test_every_program_of_the_page_is_crashed() -> None:
    """Every program of the page is among the programs that `recipe_crashes.py` crashes, each with its guarantee."""
    assert [recipe.program for recipe in RECIPES] == list(programs())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.program)
async def test_a_crashed_program_keeps_its_promise(recipe: Recipe) -> None:
    """After crashes, a record has as many effects as its program guarantees; allowed repeats and losses do occur."""
    crashes = CRASHES.get(recipe.program, FEWER_CRASHES)
    report = await run(recipe, crashes, SEED)

    assert report.wrong is None, report
    assert sum(report.crashes.values()) == crashes
    assert (report.never > 0) == (recipe.at_least == 0), report
    assert (report.repeated > 0) == (recipe.at_most is None), report


@pytest.mark.scenario
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "line", "refusal"),
    [
        ("exactly_once_sqlite.py", BEFORE_THE_TRANSACTION, ALREADY_STORED),
        ("exactly_once_postgresql.py", BEFORE_THE_TRANSACTION, ALREADY_STORED),
        ("exactly_once_topic.py", BEFORE_THE_RESULT, "producer_fenced"),
    ],
)
async def test_a_ghost_stores_nothing_twice(program: str, line: str, refusal: str) -> None:
    """A worker that was paused before its transaction and has been replaced does not store a record twice."""
    recipe = next(recipe for recipe in RECIPES if recipe.program == program)
    async with crashed_program(recipe, SEED) as crashed:
        said = await crashed.run_beside_ghost(line)

    assert refusal in said
    assert (crashed.report.never, crashed.report.repeated) == (0, 0)
