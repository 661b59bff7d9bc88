"""No output of a broker or client contains a secret (rules A11, U3; proof V18).

Secrets of every kind are sent to a broker, in the right place and in every wrong place: over HTTP, to the listener for
Kafka's clients, in the credentials of links, to the console, in profiles of the command line, in the headers of an
exporter, in requests for the keys of an issuer, in the keys of clients, and as the password of an etcd. All output of
the broker and its clients is searched for the texts of the secrets.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import sqlite3
import ssl
import threading
import traceback
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

import link_kit
from broker_kit import Calls
from certificate_kit import Authority
from etcd_cluster import etcd_cluster
from fairlead import Admin, Consumer, Producer
from fairlead.errors import FairleadError
from fairlead.testing import SecureCluster, cluster
from fairlead_api.token_text import TokenText
from fairlead_broker.kafka.protocol.apis import ApiKey
from fairlead_broker.settings import BrokerSettings
from issuer_kit import KeyServer, TestIssuer
from kafka_wire import KafkaConnection
from visitor import Visitor
from waiting import until
from warm_programs import start

SECONDS_MAX: Final = 60.0
FREE: Final = "127.0.0.1:0"
FORGED: Final = "eyJhbGciOiJub25lIn0.c2VjcmV0LW9mLW1hcmtlZC1jbGFpbXM.bWFya2VkLXNpZ25hdHVyZS1vZi1hLXRva2Vu"
READS: Final = (
    "/v1/versions", "/v1/whoami", "/v1/metadata", "/v1/cluster", "/v1/brokers", "/v1/cluster/config",
    "/v1/brokers/0/config", "/v1/topics", "/v1/topics/orders", "/v1/groups", "/v1/security", "/v1/tokens", "/v1/acls",
    "/v1/reassignments", "/openapi.json", "/v1/links", "/v1/links/east", "/v1/links/west",
)  # fmt: skip
PAGES: Final = (
    "/",
    "/topics",
    "/topics/orders",
    "/links",
    "/links/east",
    "/security",
    "/sign-in/oidc",
    "/no-such-page",
)
OF_COLLECTOR: Final = "marked-secret-of-the-collector-of-traces"
OF_CONSOLE: Final = "marked-secret-of-the-client-at-the-issuer"
OF_SESSIONS: Final = "marked-secret-that-encrypts-the-sessions"
OF_ISSUER: Final = "marked-secret-for-fetching-the-keys-of-an-issuer"
OF_ETCD: Final = "marked-secret-of-a-user-of-etcd"
WRONG_FOR_ETCD: Final = "marked-secret-that-etcd-does-not-accept"
TRACED: Final = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@contextmanager
def trace_collector() -> Iterator[tuple[str, list[bytes]]]:
    """Run a collector of traces; yield its address and the list of received exports."""
    received: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def marks(secrets: Iterable[str]) -> set[str]:
    """Return the texts to search for: each secret, and the secret part or signature of each token."""
    found = set()
    for secret in secrets:
        found.add(secret)
        if secret.startswith("flt_"):
            found.add(secret[len("flt_") + 12 + 1 :][:43])
        elif secret.count(".") == 2:
            found.add(secret.rpartition(".")[2])
    return {each for each in found if len(each) > 20}


async def planted(calls: Calls, secret: str) -> list[str]:
    """Send a secret in every wrong place; return the answers."""
    bearer = {"authorization": f"Bearer {secret}"}
    asked: list[tuple[str, str, bytes | None, dict[str, str]]] = [
        ("GET", "/v1/whoami", None, bearer),
        ("GET", "/v1/cluster", None, bearer),
        ("GET", f"/v1/whoami?token={secret}", None, {}),
        ("GET", f"/v1/whoami?access_token={secret}", None, bearer),
        ("GET", "/v1/whoami", None, {"authorization": f"Basic {secret}"}),
        ("GET", "/v1/whoami", None, {"cookie": f"token={secret}"}),
        ("GET", "/v1/whoami", None, {"fairlead-broker-proof": secret, "fairlead-caller": secret}),
        ("POST", "/v1/tokens", b'{"principal": "user:x", "token": "%s"}' % secret.encode(), bearer),
        (
            "POST",
            "/v1/topics/orders/records",
            b'{"records": [{"value": "v", "token": "%s"}]}' % secret.encode(),
            bearer | TRACED,
        ),
        ("POST", "/v1/topics", b'{"name": 5, "secret": "%s"' % secret.encode(), bearer),
    ]
    return [str(await calls.call(*each)) for each in asked]


async def planted_in_kafka(address: str, ca: Path, secret: str) -> list[str]:
    """Send a secret to the Kafka listener, as a token and in every wrong place; return the answers."""
    tls, text = ssl.create_default_context(cafile=ca), secret.encode()
    messages = (
        ("PLAIN", b"\0token\0" + text),
        ("PLAIN", b"\0%s\0%s" % (text, text)),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer " + text + b"\x01\x01"),
        ("OAUTHBEARER", text),
        (secret, text),
    )

    async def authenticate(mechanism: str, message: bytes) -> str:
        async with KafkaConnection.open(address, tls) as connection:
            chosen = await connection.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism)
            if mechanism == secret:
                return str(chosen.mechanisms)
            answer = await connection.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)
            return f"kafka {answer.error_code} {answer.error_message} {answer.auth_bytes}"

    return await asyncio.gather(*(authenticate(*each) for each in messages))


async def planted_in_links(calls: Calls, folder: Path, source: SecureCluster) -> tuple[list[str], str]:
    """Return the answers about a link whose token is revoked and about a refused link, and the revoked token."""
    identity, answers = Authority.make().issue().write(folder), list[str]()

    async def shows(path: str, text: bytes) -> bool:
        answers.append(str(found := await calls.call("GET", path)))
        return text in found.body

    async with Admin(**source.arguments) as admin:
        created = await admin.create_token("user:admin")
        await admin.create_topic("mirrored", partitions=1)
        body = {"source": {"bootstrap": source.bootstrap.split(",")}, "topics": {"include": ["*"]}}
        for name, token in (("east", created.token), ("west", FORGED)):
            (folder / f"{name}.token").write_text(token)
            for part, file in (
                ("crt", identity / "tls.crt"),
                ("key", identity / "tls.key"),
                ("ca", source.ca_file),
            ):
                (folder / f"{name}.{part}").write_bytes(file.read_bytes())
            answers.append(str(await calls.post("/v1/links", {"name": name, **body})))
        await link_kit.until(lambda: shows("/v1/links/east/topics", b'"mirroring"'), "no topic is mirrored")
        await admin.revoke_token(created.token_id)
        await link_kit.until(lambda: shows("/v1/links/east/topics", b'"reason":"'), "the token is accepted")
    return answers, created.token


def settings_of_client(ca: Path) -> dict[str, str]:
    """Return the environment of a client that trusts the broker."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("FAIRLEAD_")}
    return {**own, "FAIRLEAD_CA_FILE": str(ca)}


def outputs_of_console(url: str, ca: Path, folder: Path, secrets: list[str]) -> list[str]:
    """Return the output of a console, and its pages for callers that sign in with each secret."""
    options = [
        "--bootstrap",
        url,
        "--listen",
        FREE,
        "--output",
        "json",
        "--oidc-issuer",
        "https://127.0.0.1:1",
    ]
    for option, secret in (("--session-key-file", OF_SESSIONS), ("--oidc-client-secret-file", OF_CONSOLE)):
        (folder / secret).write_text(secret)
        options += [option, str(folder / secret)]
    with (folder / "console.log").open("wb") as log:
        process = start("console", *options, environment=settings_of_client(ca), errors=log)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        outputs = [line]
        for secret in secrets:
            visitor = Visitor(str(json.loads(line)["console"]))
            outputs += map(str, visitor.sign_in(secret))
            outputs += [str(part) for path in PAGES for part in visitor.get(path)]
            outputs += map(str, visitor.get(f"/sign-in/callback?code={secret}&state={secret}"))
            outputs += [str(each.value) for each in visitor.cookies.values()]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
    return [*outputs, (folder / "console.log").read_text()]


def outputs_of_profiles(url: str, ca: Path, folder: Path, secrets: list[str]) -> list[str]:
    """Return the output of commands that take each secret from the file and from the program of a profile."""
    file, configuration = folder / "profile.token", folder / "configuration"
    given = settings_of_client(ca) | {"XDG_CONFIG_HOME": str(configuration)}
    outputs = []

    def run(*words: str) -> None:
        with (folder / "command.log").open("wb") as log:
            process = start(*words, environment=given, errors=log)
        assert process.stdout is not None
        with process.stdout as printed:
            outputs.append(printed.read().decode())
        process.wait(30)
        outputs.append((folder / "command.log").read_text())

    for name, option, source in (
        ("file", "--token-file", str(file)),
        ("program", "--token-command", f"cat {file}"),
    ):
        run("profile", "create", name, "--bootstrap", url, option, source, "--ca-file", str(ca))
    for secret in secrets:
        file.write_text(secret)
        for name in ("file", "program"):
            given["FAIRLEAD_PROFILE"] = name
            run("whoami", "--output", "json")
            run("topic", "create", "of-a-profile")
    run("profile", "list", "--output", "json")
    return [*outputs, *(each.read_text() for each in configuration.rglob("*") if each.is_file())]


def metrics(address: str, ca: Path, token: str) -> str:
    """Return the metrics on the ops listener, which speaks HTTP/1.1."""
    request = urllib.request.Request(
        f"https://{address}/metrics", headers={"authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, context=ssl.create_default_context(cafile=ca), timeout=30) as answer:
        return str(answer.read().decode())


def stored(folder: Path) -> str:
    """Return the contents of the coordination store and of the data directory, except the files that are secrets."""
    texts = []
    for file in folder.rglob("*"):
        if file.is_file() and file.name not in ("admin.token", "tls.key"):
            texts.append(file.read_bytes().decode("latin-1"))
        if file.suffix == ".sqlite":
            with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
                texts += database.iterdump()
    return "\n".join(texts)


def command(folder: Path, tls: Path) -> list[str]:
    """Return the command that starts an enforcing broker in a folder."""
    words = ["broker", "start", "--output", "json", "--data", str(folder / "data"), "--tls", str(tls)]
    words += ["--listen", FREE, "--peer-listen", FREE, "--ops-listen", FREE, "--kafka-listen", FREE]
    return [*words, "--security", "enforce", "--admin-token-file", str(folder / "admin.token")]


@asynccontextmanager
async def started(folder: Path, tls: Path, environment: dict[str, str]) -> AsyncIterator[bytes]:
    """Run an enforcing broker, and yield its line of addresses, which is empty if the broker has ended."""
    with (folder / "broker.log").open("ab") as log:
        process = await asyncio.to_thread(start, *command(folder, tls), environment=environment, errors=log)
    assert process.stdout is not None
    try:
        yield await asyncio.to_thread(process.stdout.readline)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        process.stdout.close()


def addresses(line: bytes) -> list[str]:
    """Return the addresses of the listeners for clients, operators and Kafka's clients."""
    found = [re.search(rb'"%s": ?"(?:\w+://)?([^"]+)"' % name, line) for name in (b"data", b"ops", b"kafka")]
    return [each[1].decode() for each in found if each is not None]


@asynccontextmanager
async def issuers(folder: Path) -> AsyncIterator[tuple[KeyServer, dict[str, str]]]:
    """Yield the server of an issuer, and the settings of a broker that fetches its keys with a secret.

    The broker cannot fetch the keys of a second issuer, because the file with the secret has two lines.
    """
    server = KeyServer(TestIssuer(), Authority.make("Issuer"), folder / "issuer")
    await server.start()
    (folder / "bearer").write_text(OF_ISSUER)
    (folder / "two-lines").write_text(f"{OF_ISSUER}\n{OF_ISSUER}")
    try:
        yield (
            server,
            {
                "FAIRLEAD_ISSUERS__CORP__ISSUER": server.issuer.issuer,
                "FAIRLEAD_ISSUERS__CORP__CA": str(server.ca),
                "FAIRLEAD_ISSUERS__CORP__BEARER_FILE": str(folder / "bearer"),
                "FAIRLEAD_ISSUERS__EAST__ISSUER": "https://127.0.0.1:1",
                "FAIRLEAD_ISSUERS__EAST__BEARER_FILE": str(folder / "two-lines"),
            },
        )
    finally:
        await server.stop()


def settings_of_broker(folder: Path, collector: str) -> dict[str, str]:
    """Return the environment of a broker that logs everything, and exports traces with a secret header."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")} | {
        "FAIRLEAD_ACCESS_LOG": "true",
        "FAIRLEAD_LOG_LEVEL": "debug",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {OF_COLLECTOR}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "FAIRLEAD_LINK_CREDENTIALS": str(folder / "links"),
    }


async def test_no_secret_is_in_any_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs, audit records, traces, metrics, errors, reprs, answers and stored values are free of tokens and keys."""
    with trace_collector() as (collector, traces):
        async with issuers(tmp_path) as (server, settings):
            environment = settings_of_broker(tmp_path, collector) | settings
            outputs, secrets = await outputs_of_a_broker(
                tmp_path, monkeypatch, environment, server.issuer, traces
            )
    outputs += [each.decode("latin-1") for each in traces]
    found = [
        (each[:9], text[max(0, text.index(each) - 200) : text.index(each)])
        for each in marks(secrets)
        for text in outputs
        if each in text
    ]

    assert any("/v1/topics/{topic}/records" in text for text in outputs[-len(traces) :])
    assert any('"event":"authentication_failed"' in text for text in outputs)
    assert server.bearers == {OF_ISSUER}
    assert found == []


@pytest.mark.slow
@pytest.mark.etcd
async def test_no_password_of_etcd_is_in_any_output(tmp_path: Path) -> None:
    """Logs, metrics, answers, errors and stored values are free of the password that etcd accepts or refuses."""
    authority = Authority.make()
    tls = authority.issue().write(tmp_path / "tls", authority)
    environment = settings_of_broker(tmp_path, "http://127.0.0.1:1") | {"FAIRLEAD_ETCD_USER": "root"}
    async with etcd_cluster(tmp_path / "etcd") as etcd:
        await etcd.etcdctl("user", "add", f"root:{OF_ETCD}")
        await etcd.etcdctl("user", "grant-role", "root", "root")
        await etcd.etcdctl("auth", "enable")
        environment["FAIRLEAD_ETCD"] = etcd.urls[0]
        async with started(
            tmp_path, tls, environment | {"FAIRLEAD_ETCD_PASSWORD": WRONG_FOR_ETCD}
        ) as refused:
            outputs = [refused.decode()]
        async with started(tmp_path, tls, environment | {"FAIRLEAD_ETCD_PASSWORD": OF_ETCD}) as line:
            outputs.append(line.decode())
            data, ops, _ = addresses(line)
            admin = (tmp_path / "admin.token").read_text().strip()
            async with Calls(data, authority.pem, token=admin) as calls:
                outputs += [str(await calls.call("GET", path)) for path in READS]
            outputs.append(await asyncio.to_thread(metrics, ops, tls / "ca.crt", admin))
        outputs.append(await etcd.etcdctl("get", "--prefix", "/", user=f"root:{OF_ETCD}"))
    given = {"data": tmp_path, "etcd": etcd.urls[0], "etcd_user": "root", "etcd_password": OF_ETCD}
    outputs += [
        repr(BrokerSettings.load(given)),
        (tmp_path / "broker.log").read_text(),
        stored(tmp_path / "data"),
    ]

    assert refused == b""
    assert [each for each in marks([OF_ETCD, WRONG_FOR_ETCD]) for text in outputs if each in text] == []


async def outputs_of_a_broker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    issuer: TestIssuer,
    traces: list[bytes],
) -> tuple[list[str], list[str]]:
    """Return all outputs of a broker and its clients to which secrets are sent, except traces, and the secrets."""
    authority = Authority.make()
    tls = authority.issue().write(tmp_path / "tls", authority)
    outputs: list[str] = []
    async with started(tmp_path, tls, environment) as line:
        assert line, (tmp_path / "broker.log").read_text()[-2000:]
        outputs.append(line.decode())
        data, ops, kafka = addresses(line)
        admin = (tmp_path / "admin.token").read_text().strip()
        url = f"https://{data}"
        async with Calls(data, authority.pem, token=admin) as calls:
            made = await calls.post("/v1/tokens", {"principal": "user:ann", "note": "for a test"})
            token = made.json["token"]
            revoked = await calls.post("/v1/tokens", {"principal": "user:gone"})
            outputs.append(str(await calls.call("DELETE", f"/v1/tokens/{revoked.json['token_id']}")))
            outputs.append(str(await calls.post("/v1/topics", {"name": "orders", "partitions": 1})))
            async with cluster(secure=True) as source:
                answers, of_link = await planted_in_links(calls, tmp_path / "links", source)
            outputs += answers
            outputs += [str(await calls.call("GET", path)) for path in READS]
        secrets = [
            of_link, admin, token, revoked.json["token"], issuer.token(), issuer.token(aud="other"), FORGED,
            TokenText("0" * 12, "markedsecretmarkedsecretmarkedsecretmarkedse").text,
        ]  # fmt: skip
        async with Calls(data, authority.pem) as calls:
            for secret in secrets:
                outputs += await planted(calls, secret)
        presented = await asyncio.gather(*(planted_in_kafka(kafka, tls / "ca.crt", each) for each in secrets))
        outputs += itertools.chain(*presented)
        outputs.append(await asyncio.to_thread(metrics, ops, tls / "ca.crt", admin))
        some = [token, issuer.token(), FORGED]
        for outputs_of in (outputs_of_console, outputs_of_profiles):
            outputs += await asyncio.to_thread(outputs_of, url, tls / "ca.crt", tmp_path, some)
        outputs += await client_outputs(url, tls, tmp_path / "client", secrets, monkeypatch)
        files = {"data": tmp_path, "tls": tls, "admin_token_file": tmp_path / "admin.token"}
        outputs.append(repr(BrokerSettings.load(files)))
        await until(lambda: bool(traces), SECONDS_MAX)
    outputs += [(tmp_path / "broker.log").read_text(), stored(tmp_path / "data")]
    keys = [tls / "tls.key", tmp_path / "client" / "tls.key", *(tmp_path / "links").glob("*.key")]
    of_keys = [each.read_text().splitlines()[1] for each in keys]
    return outputs, [*secrets, *of_keys, OF_COLLECTOR, OF_CONSOLE, OF_SESSIONS, OF_ISSUER]


async def client_outputs(
    url: str, tls: Path, folder: Path, secrets: list[str], patch: pytest.MonkeyPatch
) -> list[str]:
    """Return reprs and errors of clients with each of the secrets, and with a good, a wrong and a damaged key."""
    outputs: list[str] = []
    identity = Authority.make().issue().write(folder)
    options: dict[str, Any] = {"ca_file": tls / "ca.crt", "client_cert_file": identity / "tls.crt"}
    key, damaged = identity / "tls.key", identity / "damaged.key"
    damaged.write_text(key.read_text()[:-40])

    async def ask(key: Path) -> None:
        try:
            async with Admin(url, client_key_file=key, **options) as admin:
                outputs.append(repr(await admin.brokers()))
        except FairleadError as error:
            outputs.extend((repr(error), "".join(traceback.format_exception(error))))

    for secret in secrets:
        # Clients take the token from the environment when they are created.
        patch.setenv("FAIRLEAD_TOKEN", secret)
        for client in (
            Admin(url, client_key_file=key, **options),
            Producer(url, client_key_file=key, **options),
            Consumer(url, group="g", topics="orders", client_key_file=key, **options),
        ):
            outputs += [repr(client), str(client), repr(vars(client)) if hasattr(client, "__dict__") else ""]
        await ask(key)
    for wrong in (damaged, tls / "tls.key"):
        await ask(wrong)
    return outputs
