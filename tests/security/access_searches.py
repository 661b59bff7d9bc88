"""Searches for incorrect decisions and accepted forgeries: rules, tokens, headers, certificates (proofs V4, V5).

`python access_searches.py rule-sets --count 20000 --seed 1` runs one of six searches and prints a JSON report; it
exits with 1 when the search has found a violation:

- `rule-sets`: a decision of the index about a random rule set, caller and name that differs from a naive walk over the
  rules, or a subscription pattern that is admitted although its group would assign a topic that may not be read;
- `acl-texts`: an ACL with a mutated principal or pattern that is neither refused nor matches exactly as a naive walk
  says;
- `api-tokens`: a mutated API token that is accepted, or an answer that tells an unknown token from a wrong one;
- `signed-tokens`: a mutated signed token that is accepted although it differs in more than its encoding, or an answer
  that tells one refused token from another; only texts that reach the verification of signatures are counted;
- `headers`: values of the header `Authorization` that the application of a broker in `enforce` mode does not answer, or
  answers with anything but a refusal;
- `certificates`: mutated files of certificates, keys and authorities that are neither refused by their check nor usable
  by the TLS libraries of a broker.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import random
import re
import ssl
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))

from cryptography.hazmat.primitives.asymmetric import ed25519

from access_kit import (
    NAMES,
    PREFIXES,
    SUBSCRIBED,
    SUPERUSERS,
    asked_kind,
    assigned,
    naive,
    some_acls,
    some_caller,
    some_name,
)
from acl_mutations import acl_texts
from certificate_kit import Authority
from fairlead_api import base64url
from fairlead_api.access_needs import SINGLE_KINDS, SINGLE_NAME, Audience, Kind, Operation
from fairlead_api.identifiers import TimestampUs
from fairlead_api.patterns import literal_prefix
from fairlead_api.problems import CATALOGUE, ProblemError
from fairlead_api.routes import ROUTES, Listener
from fairlead_api.token_text import ALPHABET, TokenText
from fairlead_broker.access.acl_index import AclIndex
from fairlead_broker.access.decision import CallerRules
from fairlead_broker.certificates.material import MaterialRefused, Side
from fairlead_broker.certificates.watching import Source, checked
from fairlead_broker.clock import SystemClock
from fairlead_broker.credentials.api_tokens import verified
from fairlead_broker.credentials.bearer import bearer_token
from fairlead_broker.credentials.claims import IssuerRules, is_signed
from fairlead_broker.identity import signed_tokens
from fairlead_broker.identity.issuer_keys import IssuerKeys
from fairlead_broker.identity.jose import read_keys
from fairlead_broker.identity.signed_tokens import SignedTokens
from fairlead_broker.peers.peers import tls_fault
from fairlead_broker.registry.security_records import TokenRecord
from fairlead_broker.server.http.application import Application
from fairlead_broker.server.http.problem_handler import FailureLog
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Telemetry, set_up_logging
from fairlead_broker.wiring.endpoints import build_endpoints
from fairlead_broker.wiring.start import start_broker
from issuer_kit import TestIssuer

NAMED_KINDS: Final = tuple(kind for kind in Kind if kind not in SINGLE_KINDS)
DECISIONS: Final = 8
"""Number of decisions that are compared for each rule set."""
TOKEN: Final = TokenText("abcdefghijkl", "S" * 43)
AUDIENCE: Final = "fairlead/fairlead"
ISSUERS: Final = (("P-256", "ES256"), ("Ed25519", "Ed25519"), ("RSA", "RS256"))
HEADER_VALUES: Final = (
    b"",
    b"Bearer",
    b"Bearer ",
    b"Basic YTpi",
    b"bearer\tx",
    b"Bearer null",
    b"Bearer a.b.c",
    b"Bearer ..",
)
WORDS: Final = (
    b"flt_", b".", b"..", b" ", b"\t", b",", b"\x00", b"\r\n", b"\xff", b"\xc3\xa9", b"=", b"==", b"null",
    b"eyJhbGciOiJub25lIn0",    b"Bearer ", b"Basic ", b"%2e", b"{}", b"A" * 5000,
)  # fmt: skip

Found = dict[str, Any] | None
"""The first violation of a search, with its input."""


def rule_sets(count: int, chance: random.Random, counts: Counter[str]) -> Found:
    """Compare decisions about random rule sets."""
    operations = tuple(Operation)
    for number in range(count):
        acls, caller, superusers = some_acls(chance), some_caller(chance), chance.choice(SUPERUSERS)
        rules = CallerRules(AclIndex(acls), caller, superusers)
        reasons = {acl.acl_id for acl in acls} | {"superuser", "no ACL allows it"}
        for _ in range(DECISIONS):
            operation, kind = chance.choice(operations), asked_kind(acls, chance)
            name = SINGLE_NAME if kind in SINGLE_KINDS else some_name(chance)
            decision = rules.decide(operation, kind, name)
            counts["allowed" if decision.allowed else "denied"] += 1
            counts[kind] += 1
            expected = naive(acls, caller, superusers, operation, kind, name)
            if decision.allowed is not expected or decision.because not in reasons:
                return {
                    "set": number,
                    "acls": repr(acls),
                    "caller": repr(caller),
                    "asked": [operation, kind, name],
                }
        prefix, kind = chance.choice(PREFIXES), chance.choice(NAMED_KINDS)
        pattern = chance.choice((re.escape(prefix) + ".*", *SUBSCRIBED))
        prefix = literal_prefix(pattern)
        if rules.allows_all(Operation.READ, kind, prefix):
            counts["allowed prefixes"] += 1
            names = (*NAMES, prefix + "zz", prefix + some_name(chance), "_" + some_name(chance))
            shown = assigned(pattern, names)
            if any(name.startswith("__") for name in shown):
                counts["internal names"] += 1
            if not all(rules.decide(Operation.READ, kind, name).allowed for name in shown):
                return {"set": number, "acls": repr(acls), "caller": repr(caller), "pattern": pattern}
    return None


def mutated(text: bytes, chance: random.Random) -> bytes:
    """Return the text with one to four pieces inserted, removed or replaced."""
    data = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[place:place] = bytes([chance.randrange(256)])
            case 1:
                del data[place : place + chance.randint(1, 5)]
            case 2:
                data[place : place + 1] = ALPHABET[chance.randrange(len(ALPHABET))].encode()
            case 3:
                data[place:place] = chance.choice(WORDS)
            case _:
                data[place : place + 1] = bytes([chance.randrange(256)])
    return bytes(data)


def api_tokens(count: int, chance: random.Random, counts: Counter[str]) -> Found:
    """Verify mutations of a valid API token; a third of the mutants has a correct checksum."""
    record = TokenRecord(
        principal="user:ann",
        secret_sha256=TOKEN.secret_sha256,
        created_us=TimestampUs(1),
        created_by="user:admin",
    )
    answers: dict[str, object] = {}
    for number in range(count):
        if chance.random() < 0.3:
            letters = list(TOKEN.token_id + TOKEN.secret)
            letters[chance.randrange(len(letters))] = chance.choice(ALPHABET)
            header = b"Bearer " + TokenText("".join(letters[:12]), "".join(letters[12:])).text.encode()
        else:
            header = mutated(b"Bearer " + TOKEN.text.encode(), chance)
        try:
            text = bearer_token([header])
            verified(text, {TOKEN.token_id: record}.get, 2, 0)
        except ProblemError as problem:
            reason, answer = str(problem.data.get("reason")), problem.to_document()
            counts[reason] += 1
            differs = reason not in ("malformed", "refused") or answer != answers.setdefault(reason, answer)
            if problem.code != "unauthenticated" or differs:
                return {"token": number, "header": repr(header), "answer": answer}
        else:
            counts["the same token"] += 1
            if text != TOKEN.text:
                return {"token": number, "header": repr(header), "answer": "accepted"}
    return None


def _issuers() -> dict[str, tuple[TestIssuer, IssuerKeys]]:
    found = {}
    for kind, algorithm in ISSUERS:
        name = algorithm.lower()
        issuer = TestIssuer(f"https://{name}.example", kind, algorithm)
        keys = IssuerKeys(IssuerRules(name=name, issuer=issuer.issuer, audience=AUDIENCE))
        keys.replace(read_keys(issuer.jwks).keys, int(time.time() * 1e6))
        found[name] = issuer, keys
    return found


def _parts(text: str) -> list[bytes] | None:
    """Return the decoded parts of a signed token, or None if a part cannot be decoded."""
    try:
        return [base64url.decoded(part) for part in text.split(".")]
    except ValueError:
        return None


def forged(good: str, other: str, chance: random.Random) -> str:
    """Return a signed token with a change in its text, in the content of a part, or with a part of another token."""
    parts = good.split(".")
    place = chance.randrange(3)
    pick = chance.random()
    if pick < 0.15:
        parts[place] = other.split(".")[place]
    elif pick < 0.6:
        content = bytearray(base64url.decoded(parts[place]))
        for _ in range(chance.randint(1, 3)):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        parts[place] = base64url.encoded(bytes(content))
    else:
        return mutated(good.encode(), chance).decode("latin-1")
    return ".".join(parts)


def signed(count: int, chance: random.Random, counts: Counter[str]) -> Found:
    """Verify mutations of valid signed tokens with three kinds of keys."""
    signed_tokens.CHECKS_PER_SECOND_MAX = 1 << 62  # type: ignore[misc]
    issuers = _issuers()
    view = SignedTokens({name: keys for name, (_, keys) in issuers.items()}, lambda *_: None, SystemClock())
    goods = [issuer.token(token_seconds=number) for issuer, _ in issuers.values() for number in range(4)]
    accepted = [_parts(good) for good in goods]
    answers: list[object] = []
    number = 0
    while number < count:
        text = forged(chance.choice(goods), chance.choice(goods), chance)
        if not is_signed(text) or not text.isascii():
            counts["another form"] += 1
            continue
        number += 1
        try:
            view.caller(text, 0, waited=True)
        except ProblemError as problem:
            counts[str(problem.data.get("reason"))] += 1
            answers = answers or [problem.to_document()]
            if problem.code != "unauthenticated" or problem.to_document() != answers[0]:
                return {"token": number, "text": text, "answer": problem.to_document()}
        else:
            counts["the same token"] += 1
            if _parts(text) not in accepted:
                return {"token": number, "text": text, "answer": "accepted"}
    return None


class Gate:
    """The application of a broker in `enforce` mode, to which heads are passed without the HTTP server."""

    def __init__(self, application: Application, goods: list[bytes]) -> None:
        self._application = application
        self._goods = goods
        self._routes = [
            route
            for route in ROUTES
            if route.listener is Listener.DATA and route.access.audience is not Audience.PUBLIC
        ]

    async def ask(self, values: list[bytes], chance: random.Random) -> tuple[int, bytes]:
        """Make a call to a route with these values of the header; return status and body of the answer."""
        route = chance.choice(self._routes)
        path = route.path.replace("{", "").replace("}", "")
        scope: dict[str, Any] = {
            "type": "http", "http_version": "2", "scheme": "https", "method": route.method, "path": path,
            "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"127.0.0.1:9520"), *((b"authorization", value) for value in values)],
            # The number of bad tokens from one address is limited, so each call uses a different address.
            "client": (".".join(str(chance.randrange(256)) for _ in range(4)), 1), "server": ("127.0.0.1", 9520),
        }  # fmt: skip
        status, body = 0, bytearray()
        gone: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        unread = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            return unread.pop() if unread else await gone

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body.extend(message.get("body", b""))

        async with asyncio.timeout(60):
            await self._application(scope, receive, send)
        return status, bytes(body)

    def values(self, chance: random.Random) -> list[bytes]:
        """Return values of the header, none of which is a valid token by design."""
        pick = chance.random()
        if pick < 0.5:
            return [mutated(chance.choice(self._goods), chance)]
        if pick < 0.7:
            return [chance.choice(self._goods), mutated(chance.choice(self._goods), chance)]
        if pick < 0.85:
            return [b"".join(chance.choice((*WORDS, *HEADER_VALUES)) for _ in range(chance.randint(1, 6)))]
        return [
            b"Bearer " + chance.randbytes(chance.randrange(80)).hex().encode() + b"." * chance.randrange(4)
        ]

    async def search(self, count: int, chance: random.Random, counts: Counter[str]) -> Found:
        """Make calls; return the first call that is not refused."""
        for number in range(count):
            values = self.values(chance)
            status, body = await self.ask(values, chance)
            counts[str(status)] += 1
            code = json.loads(body)["code"] if status == 401 else None
            same = len(values) == 1 and any(_token(values) == _token([good]) for good in self._goods)
            if not same and (status != 401 or code not in CATALOGUE):
                return {"call": number, "values": repr(values), "status": status, "body": repr(body[:300])}
        return None


def _token(values: list[bytes]) -> list[bytes] | str | None:
    """Return the credential in a header: the text of an API token, or the content of a signed token."""
    try:
        text = bearer_token(values)
    except ProblemError:
        return None
    return _parts(text) if is_signed(text) else text


async def _headers(count: int, chance: random.Random, counts: Counter[str], folder: Path) -> Found:
    signed_tokens.CHECKS_PER_SECOND_MAX = 1 << 62  # type: ignore[misc]
    issuer = TestIssuer()
    (folder / "keys.json").write_bytes(issuer.jwks)
    free = "127.0.0.1:0"
    settings = BrokerSettings.load(
        {
            "data": folder / "data", "listen": free, "peer_listen": free, "ops_listen": free,
            "security": "enforce", "admin_token_file": folder / "admin.token",
            "issuers": {"corp": {"issuer": issuer.issuer, "jwks": str(folder / "keys.json")}},
        }
    )  # fmt: skip
    running = await start_broker(settings)
    runtime, telemetry, clock = running.broker, Telemetry(), SystemClock()
    try:
        runtime.security.signed.issuers["corp"].replace(read_keys(issuer.jwks).keys, clock.now_us())
        endpoints = build_endpoints(runtime)
        application = Application(
            [route for route in ROUTES if route.listener is Listener.DATA],
            endpoints.data,
            clock,
            RequestMetrics(telemetry, access_log=False),
            FailureLog(telemetry.log, "search"),
            access=endpoints.access,
        )
        goods = [(folder / "admin.token").read_bytes().strip(), issuer.token().encode()]
        gate = Gate(application, [b"Bearer " + good for good in goods])
        for good in goods:
            status, _ = await gate.ask([b"Bearer " + good], chance)
            assert status != 401, "a valid token is refused"
        return await gate.search(count, chance, counts)
    finally:
        await running.stop()


def headers(count: int, chance: random.Random, counts: Counter[str]) -> Found:
    """Answer calls with random values of the header `Authorization`."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_headers(count, chance, counts, Path(folder)))


def _changed_pem(pem: bytes, chance: random.Random) -> bytes:
    """Return a PEM file with a few changed bytes, in most cases in the encoded content."""
    if chance.random() < 0.1:
        return mutated(pem, chance)
    label, *lines, end = pem.strip().split(b"\n")
    content = bytearray(base64.b64decode(b"".join(lines)))
    for _ in range(chance.randint(1, 2)):
        place = chance.randrange(len(content))
        match chance.randrange(4):
            case 0:
                content[place] ^= 1 << chance.randrange(8)
            case 1:
                content[place] = chance.randrange(256)
            case 2:
                del content[place]
            case _:
                content.insert(place, chance.randrange(256))
    return b"\n".join((label, base64.b64encode(content), end, b""))


def certificates(count: int, chance: random.Random, counts: Counter[str]) -> Found:
    """Check mutations of the files of a listener's certificate."""
    authority = Authority.make()
    issued = [authority.issue(), authority.issue(key=ed25519.Ed25519PrivateKey.generate())]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    now_us = int(time.time() * 1e6)
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        # A mutated serial number may be negative, about which `cryptography` warns.
        warnings.simplefilter("ignore")
        folder, loaded = Path(name), Path(name) / "loaded.pem"
        for number in range(count):
            file = folder / chance.choice(("tls.crt", "tls.key", "ca.crt"))
            chance.choice(issued).write(folder, authority)
            file.write_bytes(changed := _changed_pem(file.read_bytes(), chance))
            source = Source(chance.choice(tuple(Side)), folder, ("localhost",))
            try:
                material = checked(source, now_us, tls_fault)
            except MaterialRefused:
                counts["refused"] += 1
                continue
            except Exception as error:  # noqa: BLE001 - every other exception is a violation
                return {"case": number, "file": file.name, "content": repr(changed), "error": repr(error)}
            counts["accepted"] += 1
            loaded.write_bytes(material.key_pem + material.chain_pem)
            try:
                context.load_cert_chain(loaded)
                context.load_verify_locations(cadata=material.ca_pem.decode())
            except (ssl.SSLError, ValueError) as error:
                return {"case": number, "file": file.name, "content": repr(changed), "error": repr(error)}
    return None


SEARCHES: Final[dict[str, Callable[[int, random.Random, Counter[str]], Found]]] = {
    "rule-sets": rule_sets,
    "acl-texts": acl_texts,
    "api-tokens": api_tokens,
    "signed-tokens": signed,
    "headers": headers,
    "certificates": certificates,
}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("search", choices=SEARCHES)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    set_up_logging("json", "error")
    # Audit records are logged at every level.
    logging.getLogger("fairlead.audit").disabled = True
    counts = Counter[str]()
    found = SEARCHES[arguments.search](arguments.count, random.Random(arguments.seed), counts)
    report = {"seed": arguments.seed, "count": arguments.count, "outcomes": dict(counts), "found": found}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
