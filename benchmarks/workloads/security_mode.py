"""The security mode of a broker while it is measured."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead import Admin


async def change(admin: Admin, mode: str) -> None:
    """Change the security mode, and wait until the broker applies it."""
    await admin.alter_cluster_config({"security.mode": mode})
    async with asyncio.timeout(10):
        while (await admin.whoami()).mode != mode:
            pass
