"""`python -m fairlead_broker`: a broker without the command line package's other commands."""

from __future__ import annotations

import typer

from fairlead_broker.commands import broker_start

if __name__ == "__main__":
    typer.run(broker_start)
