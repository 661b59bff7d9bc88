"""Doors to the API server that a test can make slow, failing or shut, for one program alone: see `Door`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path as Folder

FAULT_DOOR = Path(__file__).with_name("fault_door.py")
FOR_EVER = -1
API_SERVER = "https://10.88.0.1:6443"


class Door:
    """A way to the API server of a test's own; clients must come with a token, such as one of a service account.

    Orders hold for requests that come after them. Rules are tried in the order they were given.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Speak with the process that serves it; it says first on which port."""
        self._process = process
        self.server = f"https://127.0.0.1:{self._answer()['port']}"
        """Its address, inside the box and outside."""

    def answer(
        self,
        status: int,
        *,
        times: int = FOR_EVER,
        methods: Sequence[str] = (),
        path: str = "",
        after: bool = False,
    ) -> None:
        """Answer requests with an error: of some methods, with a pattern in path and query, that many times.

        With `after` the request is carried out, and the error takes the place of its answer.
        """
        self._rule(methods, path, times, status=status, after=after)

    def delay(
        self, seconds: float, *, times: int = FOR_EVER, methods: Sequence[str] = (), path: str = ""
    ) -> None:
        """Pass requests on that much later."""
        self._rule(methods, path, times, delay_seconds=seconds)

    def go_away(self) -> None:
        """Break every connection and every new one, until `clear`: as if the API server were not there."""
        self._tell({"order": "away"})

    def clear(self) -> int:
        """Pass everything on again; return how many errors have been answered in all."""
        return int(self._tell({"order": "clear"})["answered"])

    def _rule(
        self,
        methods: Sequence[str],
        path: str,
        times: int,
        *,
        status: int = 0,
        delay_seconds: float = 0.0,
        after: bool = False,
    ) -> None:
        order = {"order": "rule", "methods": list(methods), "path": path, "times": times}
        self._tell({**order, "status": status, "delay_seconds": delay_seconds, "after": after})

    def _tell(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None, "its input is a pipe"
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "its output is a pipe"
        line = self._process.stdout.readline()
        assert line, "the door has ended; what it said is in the log"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def open_door(enter: Sequence[str], state: Folder) -> Iterator[Door]:
    """Open a door in the box with that folder, and close it at the end."""
    log = state / "log" / "fault-doors.log"
    with socket.socket() as listener, log.open("ab") as said:
        listener.bind(("127.0.0.1", 0))
        listener.listen(socket.SOMAXCONN)
        words = ["--listener", str(listener.fileno()), "--upstream", API_SERVER, "--pki", str(state / "pki")]
        process = subprocess.Popen(
            [*enter, sys.executable, str(FAULT_DOOR), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            pass_fds=(listener.fileno(),),
        )
    with process:
        yield Door(process)
