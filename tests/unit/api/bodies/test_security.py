"""Bodies of calls on tokens and ACLs: which principals, operations and patterns they allow."""

import pytest

from fairlead_api.access_needs import Kind
from fairlead_api.bodies.security import AclRequest, CreateTokenRequest
from fairlead_api.problems import ProblemError
from fairlead_api.routes import route
from fairlead_api.token_text import TokenText


def acl(
    principal: str = "user:ann", operation: str = "read", kind: Kind = Kind.TOPIC, pattern: str = "*"
) -> AclRequest:
    """Return the body of a new ACL."""
    return AclRequest(principal=principal, operations=(operation,), kind=kind, pattern=pattern)


def test_valid_bodies() -> None:
    """Bodies may name a user, a prefix of topic names, and the cluster, whose only pattern is the default."""
    assert CreateTokenRequest(principal="user:ann").principal == "user:ann"
    assert acl(pattern="orders*").pattern == "orders*"
    assert acl(kind=Kind.CLUSTER, operation="all").kind is Kind.CLUSTER


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"principal": "nobody at all"}, "invalid_principal"),
        ({"operation": "shout"}, "invalid_acl"),
        ({"kind": Kind.CLUSTER, "pattern": "main"}, "invalid_acl"),
        ({"pattern": "or*ders"}, "invalid_acl"),
    ],
    ids=str,
)
def test_refused_acls(given: dict[str, object], code: str) -> None:
    """An ACL whose principal, operation or pattern has an unknown form is refused."""
    with pytest.raises(ProblemError) as refused:
        acl(**given)  # type: ignore[arg-type]

    assert refused.value.code == code


def test_a_token_belongs_to_a_user() -> None:
    """A token for a principal other than a user is refused."""
    with pytest.raises(ProblemError) as refused:
        CreateTokenRequest(principal="broker:1")

    assert refused.value.code == "invalid_principal"


def test_needs_of_a_route() -> None:
    """The gate of a route checks access to the topic in its path, and a public route has the operation `describe`."""
    assert [need.kind for need in route("describe_topic").access.gate] == [Kind.TOPIC]
    assert route("versions").operation == "describe"


def test_brokers_store_a_hash_of_the_secret() -> None:
    """The hash of a secret has 64 hexadecimal digits and does not contain the secret."""
    token = TokenText("i" * 12, "s" * 43)

    assert len(token.secret_sha256) == 64
    assert token.secret not in token.secret_sha256
