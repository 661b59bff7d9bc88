"""The search that fails a test whose brokers or clients show a token or a key (proof V18)."""

from __future__ import annotations

import pytest

from fairlead_api import base64url
from fairlead_api.token_text import TokenText
from shown_tokens import SEARCHED, files_with_secrets

TOKEN = TokenText("0" * 12, "s" * 43)
SIGNED = ".".join(
    base64url.encoded(part)
    for part in (b'{"alg":"Ed25519"}', b'{"sub":"ann","aud":"fairlead/fairlead"}', b"s" * 64)
)
KEY = "-----BEGIN PRIVATE KEY-----"


@pytest.mark.parametrize("secret", [TOKEN.text, f"x{TOKEN.text}x", SIGNED, f"Bearer {SIGNED}", KEY])
@pytest.mark.parametrize("name", [f"broker{suffix}" for suffix in SEARCHED])
def test_a_secret_in_a_log_or_store_is_found(
    tmp_path_factory: pytest.TempPathFactory, name: str, secret: str
) -> None:
    """A token or a private key is found in each kind of file, but not the id of a token or a file of tokens."""
    # The folder of the test itself is searched after the test.
    folder = tmp_path_factory.mktemp("shown")
    (folder / "below").mkdir()
    (folder / "admin.token").write_text(secret)
    (folder / "good.log").write_text(f"token {TOKEN.token_id} of {TOKEN!r} revoked")
    shown = folder / "below" / name
    shown.write_bytes(b"\0\xff" + secret.encode() + b"\n")

    assert files_with_secrets(folder) == [shown]
