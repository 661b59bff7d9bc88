"""Tests of certificates, passwords, roles and tokens, and of members of another cluster."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import structlog
import trustme
from structlog.testing import CapturingLogger

from etcd_cluster import QUICK, EtcdCluster, etcd_cluster
from fairlead_api.identifiers import Revision
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.etcd import (
    CredentialsRefused,
    EtcdOptions,
    EtcdTls,
    EtcdUser,
    WrongCluster,
    connect,
)
from fairlead_broker.coordination.protocol import (
    Compacted,
    Coordination,
    CoordinationUnavailable,
    FutureRevision,
)
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime.lifecycle.coordination_access import open_coordination
from fairlead_broker.settings import BrokerSettings
from fairlead_operator.render.etcd import secure_arguments
from refusals import raises

ROOT = EtcdUser("root", "the root password")
BROKER = EtcdUser("broker", "the broker's password")
SHORT = replace(QUICK, call_seconds=2.0)
ANSWER_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its files on disk."""

    ca: trustme.CA
    folder: Path

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority."""
        path = self.folder / "ca.pem"
        self.ca.cert_pem.write_to_path(str(path))
        return path

    def issue(self, name: str, *hosts: str) -> tuple[Path, Path]:
        """Create a certificate and its key."""
        issued = self.ca.issue_cert(*hosts, common_name=name)
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        issued.private_key_pem.write_to_path(str(key))
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return certificate, key

    def tls(self, name: str) -> EtcdTls:
        """Return the files of a client."""
        certificate, key = self.issue(name, f"{name}.test")
        return EtcdTls(self.ca_file, certificate, key)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return a new authority."""
    return Authority(trustme.CA(), tmp_path)


@pytest.fixture
async def secured(authority: Authority) -> AsyncIterator[EtcdCluster]:
    """Yield a member that only accepts TLS, with clients that have a certificate."""
    certificate, key = authority.issue("server", "127.0.0.1")
    arguments = (
        f"--cert-file={certificate}",
        f"--key-file={key}",
        f"--trusted-ca-file={authority.ca_file}",
        "--client-cert-auth",
    )
    async with etcd_cluster(authority.folder, arguments=arguments, tls=authority.tls("client")) as cluster:
        yield cluster


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[EtcdCluster]:
    """Yield a member with users, whose tokens expire after a second; `broker` may use only `/fairlead/`."""
    async with etcd_cluster(tmp_path, arguments=("--auth-token-ttl=1",)) as cluster:
        await cluster.etcdctl("user", "add", f"{ROOT.name}:{ROOT.password}")
        await cluster.etcdctl("user", "grant-role", ROOT.name, "root")
        await cluster.etcdctl("role", "add", "brokers")
        await cluster.etcdctl(
            "role", "grant-permission", "brokers", "--prefix=true", "readwrite", "/fairlead/"
        )
        await cluster.etcdctl("user", "add", f"{BROKER.name}:{BROKER.password}")
        await cluster.etcdctl("user", "grant-role", BROKER.name, "brokers")
        await cluster.etcdctl("auth", "enable")
        yield cluster


async def write(client: Coordination, key: str = "/fairlead/k") -> Revision:
    """Write one key; return the revision."""
    return (await client.transact((), (Put(key, b""),))).revision


async def test_both_sides_show_certificates(secured: EtcdCluster) -> None:
    """Calls over TLS work with certificates issued by the authority."""
    async with await connect(secured.options()) as client:
        revision = await write(client)
        watch = client.watch("/", revision)
        async with asyncio.timeout(10):
            batch = await anext(watch)

        assert batch.revision == revision


@pytest.mark.parametrize(
    ("own", "reason"),
    [(False, "ertificate"), (True, "ertificate")],
    ids=["without a certificate of our own", "with one of another authority"],
)
async def test_a_client_that_is_not_known_is_not_let_in(
    secured: EtcdCluster, authority: Authority, tmp_path: Path, own: bool, reason: str
) -> None:
    """A client without a certificate issued by the authority sends nothing, and the error names the member."""
    (tmp_path / "stranger").mkdir()
    stranger = Authority(trustme.CA(), tmp_path / "stranger").tls("stranger")
    tls = replace(stranger, ca=authority.ca_file) if own else EtcdTls(authority.ca_file)
    with raises(CoordinationUnavailable, secured.urls[0]):
        await connect(EtcdOptions(secured.urls, tls, patience=SHORT))


def is_answered(port: int, context: ssl.SSLContext) -> bool:
    """Return whether a member answers a request over a connection with this context."""
    request = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    try:
        with (
            socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(request)
            return connection.recv(1 << 10).startswith(b"HTTP/1.1 200 ")
    except (ssl.SSLError, ConnectionError):
        return False


async def test_members_of_a_managed_etcd_accept_only_their_cluster(
    authority: Authority, tmp_path: Path
) -> None:
    """With the arguments of a managed etcd, both ports need TLS 1.3 and a certificate of the cluster (rule T15)."""
    folder = tmp_path / "tls"
    for each in (folder, tmp_path / "stranger"):
        each.mkdir()
    certificate, key = authority.issue("member", "127.0.0.1")
    for name, file in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority.ca_file)):
        (folder / name).write_bytes(file.read_bytes())
    stranger = Authority(trustme.CA(), tmp_path / "stranger").tls("stranger")

    def context(own: EtcdTls | None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=authority.ca_file)
        made.maximum_version = newest
        if own is not None:
            assert own.certificate is not None
            made.load_cert_chain(own.certificate, own.key)
        return made

    known = authority.tls("client")
    contexts = {
        "known": context(known),
        "older": context(known, ssl.TLSVersion.TLSv1_2),
        "nameless": context(None),
        "stranger": context(stranger),
    }
    arguments = secure_arguments(str(folder))
    async with etcd_cluster(authority.folder, arguments=arguments, tls=known, peer_scheme="https") as cluster:
        [member] = cluster.members
        answered = [
            (name, port == member.peer_port)
            for name, each in contexts.items()
            for port in (member.client_port, member.peer_port)
            if await asyncio.to_thread(is_answered, port, each)
        ]

    assert answered == [("known", False), ("known", True)]


async def test_a_member_that_is_not_known_is_not_believed(secured: EtcdCluster, tmp_path: Path) -> None:
    """A member with a certificate issued by another authority is refused, and the message names the reason."""
    (tmp_path / "other").mkdir()
    tls = Authority(trustme.CA(), tmp_path / "other").tls("client")
    with raises(CoordinationUnavailable, "CERTIFICATE_VERIFY_FAILED"):
        await connect(EtcdOptions(secured.urls, tls, patience=SHORT))


async def test_renewed_certificates_are_taken_up(
    secured: EtcdCluster, authority: Authority, tmp_path: Path
) -> None:
    """A client reads its certificate files again for each new connection, so a renewed certificate works."""
    (tmp_path / "stranger").mkdir()
    stranger = Authority(trustme.CA(), tmp_path / "stranger").tls("stranger")
    tls = replace(stranger, ca=authority.ca_file)
    client = secured.client(patience=SHORT)
    client = type(client)(EtcdOptions(secured.urls, tls, patience=SHORT))
    with pytest.raises(CoordinationUnavailable):
        await client.list("/")
    known = authority.tls("renewed")
    assert tls.certificate is not None
    assert tls.key is not None
    assert known.certificate is not None
    assert known.key is not None
    tls.certificate.write_bytes(known.certificate.read_bytes())
    tls.key.write_bytes(known.key.read_bytes())
    page = await client.list("/")
    await client.close()

    assert page.items == ()


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A client with an unreadable certificate file gets an error that names the file."""
    missing = tmp_path / "missing.pem"
    with raises(CoordinationUnavailable, missing):
        await connect(EtcdOptions(("https://127.0.0.1:1",), EtcdTls(ca=missing)))


async def test_a_user_works_within_its_role(guarded: EtcdCluster) -> None:
    """A user needs no rights outside Fairlead's prefix, except to compact, and a compacted revision is reported."""
    async with await connect(guarded.options(user=BROKER)) as client:
        first = await write(client)
        lease = await client.grant_lease(5)
        await client.keep_alive(lease)
        await client.revoke(lease)
        watch = client.watch("/fairlead/", first)
        async with asyncio.timeout(10):
            batch = await anext(watch)
        last = await write(client)
        with pytest.raises(CredentialsRefused):
            await client.compact(last)
        await guarded.client(user=ROOT).compact(last)
        with pytest.raises(Compacted) as compacted:
            await client.list("/fairlead/", revision=first)
        with pytest.raises(FutureRevision) as future:
            await client.list("/fairlead/", revision=Revision(last + 5))
        with pytest.raises(FutureRevision):
            await guarded.client(user=ROOT).compact(Revision(last + 5))

    assert batch.revision == first
    assert compacted.value.revision == last
    assert future.value.current == last


@pytest.mark.parametrize(
    "user",
    [EtcdUser("broker", "guessed"), EtcdUser("nobody", "guessed"), None],
    ids=["wrong password", "unknown user", "no user"],
)
async def test_wrong_credentials_are_refused_at_once(guarded: EtcdCluster, user: EtcdUser | None) -> None:
    """Invalid credentials are refused without retries, and the password is not in the message."""
    async with asyncio.timeout(QUICK.call_seconds / 2):
        with pytest.raises(CredentialsRefused) as refusal:
            await connect(guarded.options(user=user))

    assert "guessed" not in str(refusal.value)
    assert "guessed" not in repr(user)


async def test_beyond_the_role_everything_is_refused(guarded: EtcdCluster) -> None:
    """Reads, writes and watches of other keys are refused, and a refused transaction is certainly not applied."""
    client = guarded.client(user=BROKER)
    with pytest.raises(CredentialsRefused):
        await client.list("/other/")
    with pytest.raises(CredentialsRefused):
        await write(client, "/other/k")
    watch = client.watch("/other/", Revision(1))
    with pytest.raises(CredentialsRefused):
        await anext(watch)

    assert (await guarded.client(user=ROOT).list("/other/")).items == ()


async def warned_users(**settings: object) -> list[str]:
    """Connect as a broker does, and return the users in its warnings about rights."""
    log = CapturingLogger()
    store = await open_coordination(
        BrokerSettings.load(settings), SystemClock(), structlog.wrap_logger(log, processors=[])
    )
    async with store:
        await write(store)
    return [call.kwargs["user"] for call in log.calls]


@pytest.mark.parametrize(("user", "warned"), [(BROKER, False), (ROOT, True)], ids=["narrow", "wide"])
async def test_a_user_with_rights_on_other_keys_is_warned_about(
    guarded: EtcdCluster, user: EtcdUser, warned: bool
) -> None:
    """A broker warns about a user that can read the keys of other programs (rule T16)."""
    given = {"etcd": guarded.urls[0], "etcd_user": user.name, "etcd_password": user.password}

    assert await warned_users(**given) == ([user.name] if warned else [])


async def test_a_certificate_with_rights_on_other_keys_is_warned_about(
    secured: EtcdCluster, authority: Authority
) -> None:
    """A broker warns about a certificate whose user can read other keys, in an etcd that has users (rule T16)."""
    found = {}
    for name in ("broker", "root"):
        tls = authority.tls(name)
        given = {
            "etcd": secured.urls[0],
            "etcd_ca": tls.ca,
            "etcd_cert": tls.certificate,
            "etcd_key": tls.key,
        }
        assert await warned_users(**given) == []
        found[name] = given
    await secured.etcdctl("user", "add", f"{ROOT.name}:{ROOT.password}")
    await secured.etcdctl("user", "grant-role", ROOT.name, "root")
    await secured.etcdctl("role", "add", "brokers")
    await secured.etcdctl("role", "grant-permission", "brokers", "--prefix=true", "readwrite", "/fairlead/")
    await secured.etcdctl("user", "add", "broker", "--no-password")
    await secured.etcdctl("user", "grant-role", "broker", "brokers")
    await secured.etcdctl("auth", "enable")

    assert await warned_users(**found["broker"]) == []
    assert await warned_users(**found["root"]) == [str(found["root"]["etcd_cert"])]


async def test_tokens_are_renewed(guarded: EtcdCluster) -> None:
    """After a token expires, calls and watches continue without an error for their callers."""
    client = guarded.client(user=BROKER)
    first = await write(client)
    watch = client.watch("/fairlead/", first)
    async with asyncio.timeout(10):
        await anext(watch)
    token = client._members._token
    # A token expires only because of its age, which etcd checks once a second.
    await asyncio.sleep(3.5)  # noqa: TID251
    second = await write(client)
    renewed = client._members._token
    await client.list("/fairlead/")
    async with asyncio.timeout(10):
        batch = await anext(watch)
    another = client.watch("/fairlead/", second)
    async with asyncio.timeout(10):
        again = await anext(another)

    assert token != renewed
    assert batch.revision == second
    assert again.revision == second


async def test_a_change_of_the_users_is_survived(guarded: EtcdCluster) -> None:
    """After users have changed, etcd refuses the old token and the client gets a new token."""
    client = guarded.client(user=BROKER)
    await write(client)
    await guarded.etcdctl("user", "add", "further:password", user=f"{ROOT.name}:{ROOT.password}")
    await write(client)

    assert len((await client.list("/fairlead/")).items) == 1


async def test_a_user_of_a_store_without_users_is_let_in(alone: EtcdCluster) -> None:
    """An etcd without users accepts a client with a password, which is used once authentication is enabled."""
    client = alone.client(user=ROOT)
    await write(client)
    await alone.etcdctl("user", "add", f"{ROOT.name}:{ROOT.password}")
    await alone.etcdctl("user", "grant-role", ROOT.name, "root")
    await alone.etcdctl("auth", "enable")

    assert await write(client) > 0


async def test_members_of_two_clusters_are_refused(alone: EtcdCluster, tmp_path: Path) -> None:
    """Endpoints of two clusters are refused, and the error names the member of the other cluster."""
    async with etcd_cluster(tmp_path / "other") as other:
        with pytest.raises(WrongCluster):
            await connect(alone.options(urls=(*alone.urls, *other.urls)))


async def test_another_cluster_than_the_one_that_is_meant_is_refused(
    alone: EtcdCluster, tmp_path: Path
) -> None:
    """A client that knows its cluster's id does not write into another cluster."""
    async with await connect(alone.options()) as client:
        cluster_id = client.cluster_id
    async with etcd_cluster(tmp_path / "other") as other:
        with raises(WrongCluster, other.urls[0]):
            await connect(replace(other.options(), cluster_id=cluster_id))
    async with await connect(replace(alone.options(), cluster_id=cluster_id)) as client:
        assert await write(client) > 0


async def test_a_cluster_that_is_replaced_under_a_client_is_noticed(tmp_path: Path) -> None:
    """A new cluster at the same addresses is recognised as a different cluster."""
    async with etcd_cluster(tmp_path / "cluster") as cluster:
        client = cluster.client(patience=SHORT)
        await write(client)
        [member] = cluster.members
        member.kill()
        member.folder = tmp_path / "new"
        member.arguments = (*member.arguments, "--initial-cluster-token=another")
        member.start()
        await cluster.wait_until_ready()
        with pytest.raises(WrongCluster):
            await client.list("/")
        with pytest.raises(WrongCluster):
            await write(client)

        assert (await cluster.client().list("/")).items == ()
