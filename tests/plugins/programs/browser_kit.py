"""Debian's Chromium, and the checks of every page: script errors, refusals of the policy, accessibility."""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import typer
from playwright.sync_api import expect

import checkout
from fairlead.cli.main import EXTRA_VERBS, GROUP_HELP, app, extra_command, imported

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

CHROMIUM: Final = "/usr/bin/chromium"
AXE: Final = checkout.ROOT / "tests" / "console" / "vendor" / "axe.js"

EXPECTATION_SECONDS_MAX: Final = 30
"""Time in which a page must become what a test expects; an expectation that holds does not wait."""
expect.set_options(timeout=EXPECTATION_SECONDS_MAX * 1000)


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """Open a page, and return it with the list of errors that its scripts and its policy will report."""
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda said: (
            wrong.append(said.text)
            if said.type == "error" and "Failed to load resource" not in said.text
            else None
        ),
    )
    return page, wrong


def command_of(page: Page) -> list[str]:
    """Return the words of the command that a page shows for the last change; the command line accepts them."""
    words = shlex.split(page.locator(".banner .same code").inner_text())
    program, name, *rest = words
    assert program == "fairlead"
    root: Any = typer.main.get_command(app)
    command: Any = root.commands[name] if name in GROUP_HELP else imported(name)
    while hasattr(command, "commands"):
        verb, *rest = rest
        command = extra_command(name, verb) if (name, verb) in EXTRA_VERBS else command.commands[verb]
    # A wrong word or option is an error of the parser.
    command.make_context(program, rest).close()
    return words


def await_htmx(page: Page) -> None:
    """Wait until htmx listens for the events of a page, which may be later than the page's load."""
    page.locator("#page[data-htmx-powered]").wait_for()


def violations(page: Page) -> list[str]:
    """Return axe-core's findings on a page: each rule with the first element that violates it.

    All rules are checked in the light colour scheme, and contrasts in the dark one as well. No colour may change
    gradually, so the page's context needs `reduced_motion`.
    """
    # The console's policy forbids foreign scripts in the page, but the debugger may evaluate a script.
    page.evaluate(_axe())
    page.emulate_media(color_scheme="dark")
    found = page.evaluate("() => axe.run({runOnly: ['color-contrast']})")["violations"]
    page.emulate_media(color_scheme="light")
    found += page.evaluate("() => axe.run()")["violations"]
    return [
        f"{each['id']}: {json.dumps(each['nodes'][0]['target'])} {each['nodes'][0]['html'][:120]}"
        for each in found
    ]


@cache
def _axe() -> str:
    return AXE.read_text()
