"""A console that runs as its users run it: `fairlead console` as a process, alongside a real cluster."""

from __future__ import annotations

import http.client
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlencode, urlsplit

from warm_programs import start

ANNOUNCEMENT: Final = re.compile(r"fairlead console: (http://\S+)/ shows")
ANSWER_SECONDS_MAX: Final = 60.0
STOP_SECONDS: Final = 60.0


@contextmanager
def running_console(bootstrap: str, *options: str) -> Iterator[str]:
    """Run a console on a free port and yield its address without a trailing slash."""
    process = start("console", "--bootstrap", bootstrap, "--listen", "127.0.0.1:0", *options)
    try:
        assert process.stdout is not None, "the output is a pipe"
        line = process.stdout.readline().decode()
        found = ANNOUNCEMENT.match(line)
        assert found is not None, line
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        assert code == 0


def ask(
    address: str,
    path: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    body: str | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Send one request without following redirects, and return status, headers and body of the answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=ANSWER_SECONDS_MAX)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def posted(address: str, path: str, form: dict[str, str]) -> tuple[int, http.client.HTTPMessage, str]:
    """Send a form as a browser does that has loaded a page of the console."""
    _, headers, body = ask(address, "/create-topic")
    cookie = str(headers["Set-Cookie"]).split(";")[0]
    found = re.search(r'name="csrf_token" value="(\w+)"', body.decode())
    assert found is not None
    encoded = urlencode(form | {"csrf_token": found[1]})
    sent = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
    status, answer, text = ask(address, path, "POST", sent, encoded)
    return status, answer, text.decode()
