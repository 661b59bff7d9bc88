"""Arrow and NumPy, imported on first use: they take 45 MiB of memory, and only pages about records need them.

For the same reason, modules of this package refer to clients of the SDK that read and write records as
`fairlead.Consumer` and `fairlead.Producer`, which import Arrow too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

__all__ = ["np", "pa", "pc"]

_HOMES: Final = {"np": "numpy", "pa": "pyarrow", "pc": "pyarrow.compute"}

# If type checkers saw `__getattr__`, they would accept any name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a package on its first use."""
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        found = globals()[name] = import_module(_HOMES[name])
        return found
