"""A browser without scripts: it keeps cookies, repeats the token of forms, and follows no redirects."""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass, field
from http.cookies import Morsel, SimpleCookie
from urllib.parse import urlencode

from console_kit import ask

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Visitor:
    """One browser at one console."""

    console: str
    host: str | None = None
    """Header `Host`, by default the address of the console."""
    cookies: dict[str, Morsel[str]] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
        """Load a page."""
        return self._send("GET", path, {name.replace("_", "-"): value for name, value in headers.items()})

    def token(self, path: str = "/sign-in") -> str:
        """Return the token of the forms of a page."""
        found = re.search(r'name="csrf_token" value="(\w+)"', self.get(path)[2])
        assert found is not None, path
        return found[1]

    def post(
        self, path: str, csrf: str | None = None, **fields: str
    ) -> tuple[int, http.client.HTTPMessage, str]:
        """Send a form with the token of its page, or with another token."""
        fields["csrf_token"] = self.token() if csrf is None else csrf
        return self._send("POST", path, FORM, urlencode(fields))

    def sign_in(self, token: str, next_path: str = "/") -> tuple[int, http.client.HTTPMessage, str]:
        """Sign in with a token of the cluster."""
        return self.post("/sign-in", token=token, next=next_path)

    def _send(
        self, method: str, path: str, headers: dict[str, str], body: str | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        sent = dict(headers)
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{each.key}={each.value}" for each in self.cookies.values())
        if self.host is not None:
            sent["Host"] = self.host
        status, answer, content = ask(self.console, path, method, sent, body)
        for line in answer.get_all("Set-Cookie") or []:
            for name, morsel in SimpleCookie(line).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel
        return status, answer, content.decode(errors="replace")
