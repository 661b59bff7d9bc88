"""`fairlead job run` as the main program of a Spark application, for operators that submit files in cluster mode."""

from __future__ import annotations

import sys

from fairlead.cli.main import main

if __name__ == "__main__":
    sys.argv[:1] = ["fairlead", "job", "run"]
    main()
