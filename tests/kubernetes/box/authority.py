"""Certificates and kubeconfigs of a test Kubernetes. All files are in the folder of the box."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from daemons import STATE

PKI = STATE / "pki"


class Authority:
    """The certificate authority of one box, which later processes load from its files."""

    def __init__(self) -> None:
        """Create the authority and the key of service account tokens, or load existing files."""
        certificate, key = PKI / "ca.crt", PKI / "ca.key"
        if certificate.exists():
            self._ca = trustme.CA.from_pem(certificate.read_bytes(), key.read_bytes())
            return
        PKI.mkdir(mode=0o700)
        self._ca = trustme.CA(organization_name="test Kubernetes")
        self._ca.cert_pem.write_to_path(certificate)
        self._ca.private_key_pem.write_to_path(key)
        replace_token_key(PKI)

    def certify(self, name: str, user: str, group: str = "", hosts: tuple[str, ...] = ()) -> None:
        """Write `name`.crt and `name`.key for a client (user and group), and for a server when hosts are given."""
        # The certificate always names a host, because Go refuses a certificate whose critical extension names no host.
        made = self._ca.issue_cert(
            *(hosts or ("localhost",)), common_name=user, organization_name=group or "nobody"
        )
        (PKI / f"{name}.crt").write_bytes(made.cert_chain_pems[0].bytes())
        made.private_key_pem.write_to_path(PKI / f"{name}.key")

    def kubeconfig(self, name: str, server: str) -> Path:
        """Write `name`.kubeconfig with the certificate of that name embedded, so that the file can be moved."""
        user = {
            "client-certificate-data": _encoded(f"{name}.crt"),
            "client-key-data": _encoded(f"{name}.key"),
        }
        path = STATE / f"{name}.kubeconfig"
        path.write_text(json.dumps(kubeconfig(server, (PKI / "ca.crt").read_bytes(), user), indent=1))
        path.chmod(0o600)
        return path


def kubeconfig(
    server: str, authority: bytes, user: dict[str, str], namespace: str = "default"
) -> dict[str, object]:
    """Return a kubeconfig with one server and one user, whose fields (certificate or token) are given."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "box",
        "clusters": [
            {
                "name": "box",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(authority).decode(),
                },
            }
        ],
        "users": [{"name": "box", "user": user}],
        "contexts": [{"name": "box", "context": {"cluster": "box", "user": "box", "namespace": namespace}}],
    }


def replace_token_key(folder: Path) -> None:
    """Write a new key that signs tokens of service accounts; of the earlier keys, only the last stays valid."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    keys = folder / "tokens.pub"
    previous = keys.read_bytes()[: len(public)] if keys.exists() else b""
    keys.write_bytes(public + previous)
    (folder / "tokens.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def _encoded(file: str) -> str:
    return base64.b64encode((PKI / file).read_bytes()).decode()
