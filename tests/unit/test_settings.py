"""Settings of a broker, and their sources."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from pydantic import ValidationError

import checkout
from fairlead_api.bodies.requests import TIMEOUT_MS_MAX, WAIT_MS_MAX
from fairlead_broker.commands import broker_start
from fairlead_broker.settings import KAFKA_SCHEMES, BrokerSettings, Endpoint
from page_kit import blocks
from refusals import raises


def test_defaults_serve_this_machine_only() -> None:
    """The default listeners are on loopback."""
    settings = BrokerSettings.load()

    assert [str(each) for each in (*settings.listen, settings.peer_listen, settings.ops_listen)] == [
        "127.0.0.1:9520",
        "127.0.0.1:9521",
        "127.0.0.1:9522",
    ]
    assert all(each.loopback for each in (*settings.listen, settings.peer_listen, settings.ops_listen))
    assert (settings.cluster, settings.id, settings.data) == ("fairlead", 0, Path("fairlead-data"))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:0", "localhost", 0), ("[::1]:9520", "::1", 9520), ("a.b:65535", "a.b", 65535)],
)
def test_endpoints_are_host_and_port(text: str, host: str, port: int) -> None:
    """An endpoint consists of host and port, and its text is parsed to the same endpoint."""
    endpoint = Endpoint.parse(text)

    assert (endpoint.host, endpoint.port, str(endpoint)) == (host, port, text)


@pytest.mark.parametrize(
    "text", ["", "9520", "host:", ":9520", "host:65536", "host:-1", "host:٣", "host:http"]
)
def test_other_endpoints_are_refused_by_name(text: str) -> None:
    """An invalid endpoint is refused, and the error quotes it."""
    with raises(ValueError, "HOST:PORT"):
        Endpoint.parse(text)


@pytest.mark.parametrize(
    ("text", "scheme"),
    [("h:9092", ""), ("PLAINTEXT://h:9092", "http"), ("ssl://h:9092", "https")],
)
def test_addresses_for_kafka_name_a_security_protocol(text: str, scheme: str) -> None:
    """The address of the Kafka listener may begin with Kafka's name of a protocol; others are refused."""
    assert Endpoint.parse_listener(text, KAFKA_SCHEMES) == Endpoint("h", 9092, scheme)
    with raises(ValueError, "HOST:PORT"):
        Endpoint.parse_listener("sasl://h:9092", KAFKA_SCHEMES)


TOML = "id = 3\n[limits]\ndisk_threads = 2\n"
YAML = "id: 3\nlimits: {disk_threads: 2}\n"


@pytest.mark.parametrize(("name", "text"), [("broker.toml", TOML), ("broker.yaml", YAML)])
def test_nearest_place_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str) -> None:
    """Flags override the environment, which overrides the file, which overrides defaults, even within groups."""
    (tmp_path / name).write_text(text)
    monkeypatch.setenv("FAIRLEAD_RACK", "of-environment")
    monkeypatch.setenv("FAIRLEAD_LIMITS__SYNC_THREADS", "5")
    settings = BrokerSettings.load({"cluster": "of-flag", "rack": None}, tmp_path / name)

    assert (settings.cluster, settings.rack, settings.id) == ("of-flag", "of-environment", 3)
    assert (settings.limits.disk_threads, settings.limits.sync_threads) == (2, 5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", "id = "),
        ("a.yaml", "id: ["),
        ("a.yaml", "- 1"),
        ("a.toml", "unknown = 1"),
        ("a.toml", 'id = "x"'),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str) -> None:
    """A settings file with broken syntax, without a table, with unknown names or wrong types is refused."""
    (tmp_path / name).write_text(text)

    with raises(ValueError):
        BrokerSettings.load(config_file=tmp_path / name)


def test_empty_yaml_is_no_settings(tmp_path: Path) -> None:
    """A YAML file that contains only comments changes no setting."""
    (tmp_path / "a.yaml").write_text("# nothing\n")

    assert BrokerSettings.load(config_file=tmp_path / "a.yaml") == BrokerSettings.load()


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"segment.bytes": 1}, "segment.bytes"),
        ({"no.such.key": 1}, "no.such.key"),
        ({"replication.mode": "quorum"}, "replication.mode"),
    ],
)
def test_configuration_values_are_checked_at_the_start(values: dict[str, object], names: str) -> None:
    """An invalid default of a topic key is refused at startup."""
    with raises(ValidationError, names):
        BrokerSettings.load({"config_values": values})


@pytest.mark.parametrize(
    ("given", "endpoints"),
    [
        (None, ()),
        ("", ()),
        ("http://a:2379", ("http://a:2379",)),
        ("https://a:2379, https://b:2379,", ("https://a:2379", "https://b:2379")),
    ],
)
def test_members_of_etcd_are_separated_by_commas(given: str | None, endpoints: tuple[str, ...]) -> None:
    """The members of etcd are separated by commas; an empty list selects embedded coordination."""
    assert BrokerSettings.load({"etcd": given}).etcd_endpoints == endpoints


def test_the_password_of_etcd_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of etcd comes from the environment and is not printed with the settings."""
    monkeypatch.setenv("FAIRLEAD_ETCD_PASSWORD", "open sesame")
    settings = BrokerSettings.load({"etcd": "https://a:2379", "etcd_user": "fairlead"})

    assert settings.etcd_password is not None
    assert settings.etcd_password.get_secret_value() == "open sesame"
    assert "sesame" not in repr(settings)


def test_topic_keys_become_defaults_of_topics() -> None:
    """Topic keys among the configuration values become topic defaults, and cluster keys do not."""
    settings = BrokerSettings.load(
        {"config_values": {"segment.ms": 60_000, "auto.create.topics.enable": True}}
    )

    assert settings.topic_defaults == {"segment.ms": 60_000}


def test_no_wait_that_the_contract_allows_is_cut_short() -> None:
    """A broker serves the longest waits that the parameters of the contract allow."""
    limits = BrokerSettings().limits

    assert limits.produce_timeout_seconds_max * 1000 == TIMEOUT_MS_MAX
    assert limits.fetch_wait_seconds_max * 1000 == WAIT_MS_MAX


POD = {"POD_NAME": "main-a-7", "POD_NAMESPACE": "orders", "POD_IP": "fd00::7"}


@pytest.fixture
def in_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that a pod template sets."""
    for name, value in POD.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("in_pod")
def test_addresses_are_made_of_what_the_pod_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are built from the pod's variables, with brackets around an IPv6 address.

    An empty variable for the rack means no rack.
    """
    monkeypatch.setenv("FAIRLEAD_ID", "7")
    monkeypatch.setenv("FAIRLEAD_RACK", "")
    monkeypatch.setenv("FAIRLEAD_ADVERTISE", "{pod}.main-brokers.{namespace}.svc:9520")
    settings = BrokerSettings.load({"peer_advertise": "{ip}:1{id}"})
    node_port = BrokerSettings.load({"peer_advertise": "{ip}:{id+30920}"})

    assert str(settings.advertise) == "main-a-7.main-brokers.orders.svc:9520"
    assert str(settings.peer_advertise) == "[fd00::7]:17"
    assert str(node_port.peer_advertise) == "[fd00::7]:30927"
    assert (settings.id, settings.rack) == (7, None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{zone}:1", "{zone} {id} {pod} {namespace} {ip}"),
        ("{pod}:1", "POD_NAME {pod}"),
        ("{}:1", "{}"),
    ],
)
def test_a_placeholder_without_a_value_is_named(
    monkeypatch: pytest.MonkeyPatch, text: str, named: str
) -> None:
    """A placeholder without a value is refused, and the refusal names the placeholder."""
    monkeypatch.delenv("POD_NAME", raising=False)
    with raises(ValidationError, *named.split()):
        BrokerSettings.load({"advertise": text})


@pytest.mark.parametrize(("broker", "expected"), [(1, "lb-1.example:443"), (2, "others.example:9520")])
def test_an_address_by_id_goes_before_that_of_all(tmp_path: Path, broker: int, expected: str) -> None:
    """The advertised address of a broker id overrides the address for all brokers."""
    (tmp_path / "broker.yaml").write_text("advertise_each: {'1': 'lb-1.example:443'}\n")
    settings = BrokerSettings.load(
        {"id": broker, "advertise": "others.example:9520"}, tmp_path / "broker.yaml"
    )

    assert str(settings.advertise) == expected


def test_credentials_of_etcd_come_from_a_mounted_folder(tmp_path: Path) -> None:
    """Credentials of etcd are read from a mounted folder, and settings override them.

    Missing files of the credentials are skipped.
    """
    (tmp_path / "ca.crt").write_text("pem")
    (tmp_path / "username").write_text("root\n")
    (tmp_path / "password").write_text("two words\n")
    settings = BrokerSettings.load({"etcd_credentials": tmp_path, "etcd_user": "fairlead"})

    assert settings.etcd_ca == tmp_path / "ca.crt"
    assert (settings.etcd_cert, settings.etcd_key, settings.etcd_user) == (None, None, "fairlead")
    assert settings.etcd_password is not None
    assert settings.etcd_password.get_secret_value() == "two words"
    with pytest.raises(ValidationError):
        BrokerSettings.load({"etcd_credentials": tmp_path / "none"})


def test_keys_that_are_read_at_the_start_are_settings(tmp_path: Path) -> None:
    """Kafka keys that are read at startup are settings, and a setting's own name overrides its Kafka key."""
    keys = {
        "broker.session.timeout.ms": 8_001,
        "max.connections": 99,
        "num.io.threads": "8",
        "num.recovery.threads.per.data.dir": 2,
    }
    (tmp_path / "broker.yaml").write_text(
        f"config_values: {keys}\nlimits: {{disk_threads: 3, sync_threads: 5}}\n"
    )
    settings = BrokerSettings.load(config_file=tmp_path / "broker.yaml")
    limits = settings.limits

    assert (settings.lease_seconds, limits.connections_max, limits.open_partition_threads) == (9, 99, 2)
    assert (limits.disk_threads, limits.sync_threads) == (3, 5)
    with raises(ValidationError, "num.io.threads=0", 1):
        BrokerSettings.load({"config_values": {"num.io.threads": 0}})


def test_a_cleaner_needs_memory_for_each_of_its_rounds() -> None:
    """Each of the rounds that may run at the same time needs memory for keys, and a cleaner without rounds is off."""
    two = {"log.cleaner.threads": 2, "log.cleaner.dedupe.buffer.size": 32 << 20}

    assert BrokerSettings().limits.cleans
    assert BrokerSettings.load({"config_values": two}).limits.cleaner_threads == 2
    assert not BrokerSettings.load({"config_values": {"log.cleaner.threads": 0}}).limits.cleans
    assert not BrokerSettings.load({"config_values": {"log.cleaner.enable": False}}).limits.cleans
    with raises(ValidationError, str(48 << 20), 1):
        BrokerSettings.load({"config_values": {**two, "log.cleaner.threads": 3}})
    with raises(ValidationError, "log.cleaner.threads", 1):
        BrokerSettings.load({"config_values": {"log.cleaner.threads": 5}})


def test_the_file_of_the_reference_page_is_understood(tmp_path: Path) -> None:
    """The example on the reference page is a valid settings file, and the page names every setting."""
    page = (checkout.ROOT / "docs/reference/broker-settings.md").read_text(encoding="utf-8")
    [example] = blocks(page, "toml")
    file = tmp_path / "broker.toml"
    file.write_text(example.text, encoding="utf-8")
    settings = BrokerSettings.load(config_file=file)

    assert (settings.id, str(settings.peer_advertise)) == (1, "broker-1.example:9521")
    assert settings.config_values == {"retention.ms": 86_400_000, "segment.bytes": 268_435_456}
    assert settings.limits.produce_bytes_max == 134_217_728
    assert [name for name in BrokerSettings.model_fields if f'<a id="{name}"></a>' not in page] == []


def test_issuers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issuers are read from the file or from variables, and their names, addresses and algorithms are checked (A14)."""
    monkeypatch.setenv("FAIRLEAD_ISSUERS__CORP__ISSUER", "https://login.example")
    monkeypatch.setenv("FAIRLEAD_ISSUERS__CORP__ALGORITHMS", '["EdDSA", "ES256"]')
    assert BrokerSettings.load().issuers["corp"].algorithms == ("Ed25519", "ES256")
    monkeypatch.undo()
    good = {"issuer": "https://a.example"}
    assert (
        BrokerSettings.load({"issuers": {"k8s": {"kubernetes": True}, "corp": good}}).issuers["k8s"].issuer
        is None
    )
    refused: list[dict[str, object]] = [
        {"user": good}, {"Corp": good}, {"a": good, "b": good}, {"a": {}}, {"a": {"issuer": "http://a.example"}},
        {"a": {**good, "jwks": "http://a.example/keys"}}, {"a": {**good, "algorithms": "ES256, HS256"}},
        {"a": {**good, "algorithms": []}}, {"a": {**good, "algorithms": 5}},
    ]  # fmt: skip
    for issuers in refused:
        with pytest.raises(ValidationError):
            BrokerSettings.load({"issuers": issuers})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tls", "/tls"),
        ("peer_tls", "/peer-tls"),
        ("client_ca", "/clients.pem"),
        ("tls_min", "1.2"),
        ("listen", "http://127.0.0.1:1,https://127.0.0.1:2"),
        ("peer_listen", "https://127.0.0.1:3"),
        ("ops_listen", "https://127.0.0.1:4"),
        ("advertise_tls", "b1.example:9523"),
        ("hosts", "b1.example,b1"),
        ("security", "observe"),
        ("superusers", "user:ann,group:ops:*"),
        ("admin_token_file", "/admin.token"),
        ("allow_plaintext", "true"),
        ("metrics_access", "token"),
    ],
)
def test_a_setting_of_security_is_a_flag_a_variable_and_a_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str
) -> None:
    """A flag, a variable and a key of the file have the name of the setting, and the same meaning (rule T17)."""
    if name != "tls":
        # Addresses with `https` and the authorities of clients need a certificate.
        monkeypatch.setenv("FAIRLEAD_TLS", "/tls")
    (tmp_path / "broker.toml").write_text(f'{name} = "{text}"\n')
    default = BrokerSettings.load()
    by_flag, by_file = BrokerSettings.load({name: text}), BrokerSettings.load({}, tmp_path / "broker.toml")
    monkeypatch.setenv(f"FAIRLEAD_{name.upper()}", text)

    assert getattr(by_flag, name) != getattr(default, name)
    assert by_flag == by_file == BrokerSettings.load()
    assert name in inspect.signature(broker_start).parameters


def test_a_closed_broker_needs_an_administrator(tmp_path: Path) -> None:
    """The enforce mode needs an administrator, and TLS on listeners that other machines can reach (rule T4).

    A broker whose listeners other machines can reach has no default security mode.
    """
    for given in ({"superusers": "user:ann,group:ops:*"}, {"admin_token_file": tmp_path / "token"}):
        assert BrokerSettings.load({"security": "enforce", **given}).security == "enforce"
    elsewhere = {"listen": "10.0.0.1:9520", "superusers": "user:ann"}
    external = {"external_listen": "10.0.0.1:9520", "superusers": "user:ann"}
    for given in (
        elsewhere, {"ops_listen": "[::]:0"}, {**elsewhere, "security": "enforce"}, external,
        {**external, "security": "enforce"},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            BrokerSettings.load(given)
    for given in ({"security": "open"}, {"security": "enforce", "allow_plaintext": True}):
        assert BrokerSettings.load({**elsewhere, **given}).security_floor == given["security"]
    for given in ({"security": "enforce"}, {"superusers": "user:ann user:bob"}, {"security": "closed"}):
        with pytest.raises(ValidationError):
            BrokerSettings.load(given)


def test_clients_outside_get_the_address_of_their_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an external listener, a broker's entry in `advertise_each` is the address of that listener."""
    monkeypatch.setenv("NODE_IP", "2001:db8::7")
    (tmp_path / "broker.yaml").write_text("advertise_each: {'1': '{node}:31001', '2': 'https://b2:443'}\n")
    listening = {"external_listen": "127.0.0.1:0", "advertise": "in:9520"}
    found = {
        broker: BrokerSettings.load({"id": broker, **listening}, tmp_path / "broker.yaml")
        for broker in (1, 2, 3)
    }

    assert {broker: each.external_url for broker, each in found.items()} == {
        1: "http://[2001:db8::7]:31001",
        2: "https://b2:443",
        3: "",
    }
    assert {str(each.advertise) for each in found.values()} == {"in:9520"}
    assert [found[broker].listeners.forwards_external for broker in (1, 3)] == [False, True]
    assert BrokerSettings.load({}).external_url is None
    behind = {"external_scheme": "https", "external_advertise": "out:9523"}
    assert BrokerSettings.load(listening | behind).external_url == "https://out:9523"
    with raises(ValidationError, "external_listen"):
        BrokerSettings.load({"external_listen": "https://127.0.0.1:0"})
