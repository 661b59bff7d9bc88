"""The commands of an administrator against a closed broker, as separate programs with tokens in files."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

from security_kit import Secured
from warm_programs import warm_program


class Shell:
    """Runs commands with the token of one file."""

    def __init__(self, secured: Secured, folder: Path) -> None:
        self._bootstrap = f"http://{secured.cluster.brokers[1].addresses.data}"
        self._folder = folder

    async def __call__(self, words: str, token_file: str | None = None) -> tuple[int | None, str]:
        """Run one command; return its exit code and both of its outputs."""
        environment = {**os.environ, "FAIRLEAD_BOOTSTRAP": self._bootstrap}
        if token_file is not None:
            environment["FAIRLEAD_TOKEN_FILE"] = token_file
        process = await asyncio.create_subprocess_exec(
            warm_program(), *words.split(), cwd=self._folder, env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await process.communicate()
        return process.returncode, printed.decode()


async def test_an_administrator_admits_a_producer(secured: Secured, tmp_path: Path) -> None:
    """From a closed broker to a producer that writes: token, ACL, check, refusals that name the next command."""
    shell, admin = Shell(secured, tmp_path), str(tmp_path / "admin.token")
    nameless = await shell("topic list")
    who = await shell("whoami --output json", admin)
    created = await shell("token create user:ann --file ann.token", admin)
    again = await shell("token create user:ann --file ann.token", admin)
    topic = await shell("topic create orders", admin)
    refused = await shell("topic trim orders --partition 0 --before 0", "ann.token")
    unknown = await shell("acl check user:ann write topic:orders", admin)
    allowed = await shell("acl allow user:ann write,delete topic:ord*", admin)
    trimmed = await shell("topic trim orders --partition 0 --before 0", "ann.token")
    known = await shell("acl check user:ann write topic:orders", admin)
    tokens = await shell("token list", admin)
    mode = await shell("security mode enforce --yes", admin)
    bad = await shell("acl allow user:ann fly topic:orders", admin)

    assert (nameless[0], "FAIRLEAD_TOKEN_FILE" in nameless[1]) == (4, True)
    assert (who[0], '"user:admin"' in who[1]) == (0, True)
    assert created[0] == topic[0] == allowed[0] == trimmed[0] == known[0] == mode[0] == 0, (
        allowed,
        trimmed,
        mode,
    )
    assert stat.S_IMODE((tmp_path / "ann.token").stat().st_mode) == 0o600
    assert again[0] != 0
    assert (refused[0], "fairlead acl allow user:ann " in refused[1]) == (4, True)
    assert (unknown[0], "no ACL allows it" in unknown[1]) == (1, True)
    assert (tmp_path / "ann.token").read_text().strip() not in tokens[1] + allowed[1] + created[1]
    assert bad[0] == 4
