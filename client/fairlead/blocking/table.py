"""The blocking table; see `fairlead.Table`."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator
from typing import Any

from fairlead.blocking.facade import Facade, blocking, same_arguments
from fairlead.settings import Duration
from fairlead.table import Table as AsyncTable


class Table(Facade[AsyncTable]):
    """Blocking variant of `fairlead.Table`, opened with `with`.

    The table changes while the program does other work. `on_change` runs on the thread of the table and must not call
    the table.
    """

    @same_arguments(AsyncTable.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(AsyncTable(*args, **kwargs))

    wait_for = blocking(AsyncTable.wait_for)
    put = blocking(AsyncTable.put)
    delete = blocking(AsyncTable.delete)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._client.topic

    @property
    def is_caught_up(self) -> bool:
        """Whether the table has all records that the topic had when the table was opened."""
        return self._client.is_caught_up

    def caught_up(self, timeout: Duration | None = None) -> Table:
        """Wait until the table has all records that the topic had when the table was opened, and return the table.

        Raises TimeoutError, the error that ended the reading, and `ClosedError`.
        """
        self._thread.run(self._client.caught_up(timeout))
        return self

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value of a key, or the default for a key without a value."""
        return self._client.get(key, default)

    def items(self) -> ItemsView[bytes, bytes]:
        """Return a copy of all keys and values, since the table changes while the program iterates."""
        return dict(self._client.items()).items()

    def __len__(self) -> int:
        return len(self._client)

    def __contains__(self, key: object) -> bool:
        return key in self._client

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._client))
