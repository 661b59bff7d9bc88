"""TLS contexts of listeners that asyncio serves, from checked material.

The ops listener and the Kafka listener use this module; granian's listeners read files instead.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from fairlead_broker.certificates.material import Material
from fairlead_broker.certificates.snapshots import Snapshot


async def server_context(material: Material, tls_min: str, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return a context that presents a certificate; `tls_min`: lowest version of TLS, `1.2` or `1.3`.

    `alpn`: application protocols to negotiate. Clients need a certificate if the material names their authorities.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if tls_min == "1.2" else ssl.TLSVersion.TLSv1_3
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if material.client_ca_pem is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=material.client_ca_pem.decode("ascii"))
    await load_certificate(context, material)
    return context


async def load_certificate(context: ssl.SSLContext, material: Material) -> None:
    """Load the certificate for later handshakes; the context of a running server may be changed."""
    snapshot = await asyncio.to_thread(Snapshot.write, material)
    try:
        await asyncio.to_thread(context.load_cert_chain, snapshot.chain, snapshot.key)
    finally:
        snapshot.remove()
