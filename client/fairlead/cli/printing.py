"""Printing of answers to standard output: as a table for people, as JSON or YAML for programs.

Data is printed to stdout, messages to stderr; colour is used only on a terminal. Every command that prints an answer
uses this module.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from fairlead.cli.options import OutputFormat
from fairlead_api.configuration import ConfigEntry

Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"


def print_document(document: object, output: OutputFormat) -> None:
    """Print an answer as JSON or YAML."""
    plain = msgspec.to_builtins(document)
    if output is OutputFormat.YAML:
        # yaml is imported only for YAML, because the import takes a tenth of a command's time.
        import yaml

        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")


def print_done(sentence: str, document: object, output: OutputFormat) -> None:
    """Print the result as a sentence, or as a JSON or YAML document for programs."""
    if output is OutputFormat.TABLE:
        sys.stdout.write(f"{sentence}\n")
    else:
        print_document(document, output)


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under their column names, one line per row: separated by tabs, or as a table on a terminal."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in (columns, *cells):
            sys.stdout.write("\t".join(row) + "\n")
        return
    _print_table(columns, cells)


def _print_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    # rich is imported only for a terminal, because the import takes a fifth of the time of a piped command.
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in cells:
        table.add_row(*row)
    # The table is as wide as its cells require: the terminal wraps long rows, which rich would truncate.
    width = sum(max(map(len, column)) + 3 for column in zip(columns, *cells, strict=True))
    Console(file=sys.stdout, width=width, highlight=False, markup=False).print(table, soft_wrap=True)


def print_config(config: Mapping[str, ConfigEntry]) -> None:
    """Print settings with their values and sources, sorted by name."""
    rows = [(key, entry.value, entry.source) for key, entry in sorted(config.items())]
    print_rows(["SETTING", "VALUE", "SOURCE"], rows)


def print_pairs(pairs: Mapping[str, object]) -> None:
    """Print names and values, one pair per line: aligned on a terminal, otherwise separated by a tab."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        gap = " " * (width - len(name) + 2) if sys.stdout.isatty() else "\t"
        sys.stdout.write(f"{name}{gap}{'-' if value is None else value}\n")


def ids_of(brokers: Sequence[int]) -> str:
    """Return broker ids as the text of one table cell."""
    return ",".join(map(str, brokers)) or "-"
