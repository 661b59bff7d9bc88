"""Client that carries out one turn of producing or consuming after another, as `turns.py` orders them.

Each line of standard input is a JSON object with the options of `workload.py`, and the environment variables of the
turn. Each answer is a line with the figures of the turn and the processor time of this process in user mode. The
program uses only the part of the SDK that older revisions have.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys

import uvloop
from workload import consume, produce

SIDES = {"produce": produce, "consume": consume}
DEFAULTS = {"payload": None, "compression": "none", "batch_records": 8_000, "idempotence": True}


def main() -> None:
    """Carry out turns until the end of the input."""
    of_process = dict(os.environ)
    for line in sys.stdin:
        order = json.loads(line)
        os.environ.clear()
        os.environ.update(of_process | order.pop("environment"))
        options = argparse.Namespace(**DEFAULTS, **order)
        gc.collect()
        began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        figures = uvloop.run(SIDES[options.side](options))
        used = resource.getrusage(resource.RUSAGE_SELF).ru_utime - began
        print(json.dumps(figures | {"user_seconds": used}), flush=True)


if __name__ == "__main__":
    main()
