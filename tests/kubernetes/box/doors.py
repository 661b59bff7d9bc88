"""Doors: proxies of the API server that a test can make slow, failing or closed, for one program only."""

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
    """A proxy for the API server for one test, whose clients need a token, such as a service account's.

    The methods give the proxy orders that apply to later requests. A request is handled by the first order that matches
    it.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Connect to the process of the door, which first reports its port."""
        self._process = process
        self.server = f"https://127.0.0.1:{self._answer()['port']}"
        """Address of the door, inside and outside the box."""

    def answer(
        self,
        status: int,
        *,
        times: int = FOR_EVER,
        methods: Sequence[str] = (),
        path: str = "",
        after: bool = False,
    ) -> None:
        """Answer requests with an error `times` times; methods and a pattern in path and query select the requests.

        With `after`, the request is executed before the error is answered.
        """
        self._rule(methods, path, times, status=status, after=after)

    def delay(
        self, seconds: float, *, times: int = FOR_EVER, methods: Sequence[str] = (), path: str = ""
    ) -> None:
        """Delay requests by `seconds`."""
        self._rule(methods, path, times, delay_seconds=seconds)

    def go_away(self) -> None:
        """Break every current and new connection until `clear`, as if the API server were down."""
        self._send({"order": "away"})

    def clear(self) -> int:
        """Forward all requests again; return the total number of requests that the door answered with an error."""
        return int(self._send({"order": "clear"})["answered"])

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
        self._send({**order, "status": status, "delay_seconds": delay_seconds, "after": after})

    def _send(self, order: dict[str, Any]) -> dict[str, Any]:
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
    """Open a door in the box with the folder `state`, and close the door at the end."""
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
