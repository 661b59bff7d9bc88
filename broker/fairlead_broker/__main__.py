"""`python -m fairlead_broker`: starts a broker without the rest of the command line."""

from __future__ import annotations

import typer

from fairlead_broker.commands import broker_start

if __name__ == "__main__":
    typer.run(broker_start)
