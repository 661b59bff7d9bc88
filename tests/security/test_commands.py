"""The commands of an administrator against an enforcing broker, as separate programs with tokens in files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import stat
from pathlib import Path

import checkout
from security_kit import Secured
from warm_programs import warm_program


class Shell:
    """Runs commands with the token of one file."""

    def __init__(self, secured: Secured, folder: Path) -> None:
        self.bootstrap = f"http://{secured.cluster.brokers[1].addresses.data}"
        self._folder = folder

    async def __call__(
        self, words: str, token_file: str | None = None, *, profile: str | None = None, typed: bytes = b""
    ) -> tuple[int | None, str]:
        """Run one command; return its exit code and both of its outputs.

        With a profile, no environment variable names brokers.
        """
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self._folder), "FAIRLEAD_PROFILE": profile or ""}
        if profile is None:
            environment["FAIRLEAD_BOOTSTRAP"] = self.bootstrap
        if token_file is not None:
            environment["FAIRLEAD_TOKEN_FILE"] = token_file
        process = await asyncio.create_subprocess_exec(
            warm_program(), *shlex.split(words), cwd=self._folder, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await process.communicate(typed)
        return process.returncode, printed.decode()


async def test_an_administrator_admits_a_producer(secured: Secured, tmp_path: Path) -> None:
    """Commands let a producer write to an enforcing broker: token, ACL, check; refusals name the next command."""
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
    lower = await shell("security mode observe", admin)
    bad = await shell("acl allow user:ann fly topic:orders", admin)

    assert (nameless[0], "FAIRLEAD_TOKEN_FILE" in nameless[1]) == (4, True)
    assert (who[0], '"user:admin"' in who[1]) == (0, True)
    assert created[0] == topic[0] == allowed[0] == trimmed[0] == known[0] == mode[0] == 0, (
        allowed,
        trimmed,
        mode,
    )
    # The broker was started with `--security enforce`, and does not leave this mode.
    assert (lower[0], "--security enforce" in lower[1], "warning" in mode[1]) == (0, True, False)
    assert stat.S_IMODE((tmp_path / "ann.token").stat().st_mode) == 0o600
    assert again[0] != 0
    assert (refused[0], "fairlead acl allow user:ann " in refused[1]) == (4, True)
    assert (unknown[0], "no ACL allows it" in unknown[1]) == (1, True)
    assert (tmp_path / "ann.token").read_text().strip() not in tokens[1] + allowed[1] + created[1]
    assert bad[0] == 4


async def test_a_user_is_a_token_and_its_acls(secured: Secured, tmp_path: Path) -> None:
    """One command creates a user that may write and read the named topics, and another command removes both."""
    shell, admin = Shell(secured, tmp_path), str(tmp_path / "admin.token")
    for topic in ("shop.orders", "other"):
        assert (await shell(f"topic create {topic}", admin))[0] == 0
    created = await shell(
        "user create ann --produce shop.* --consume shop.* --group ann* --file ann.token", admin
    )
    wrong = await shell("user create 'a b' --file b.token", admin)
    every = await shell("acl allow user:carol all --all-kinds", admin)
    deciding = await shell("acl list --on topic:shop.orders --output json", admin)
    listed = await shell("user list --output json", admin)
    written = await shell("produce shop.orders", "ann.token", typed=b"a book\n")
    read = await shell("consume shop.orders --group ann1 -n 1 --from-beginning", "ann.token")
    not_written = await shell("produce other", "ann.token", typed=b"a book\n")
    not_read = await shell("consume shop.orders --group bob -n 1", "ann.token")
    deleted = await shell("user delete ann", admin)
    gone = await shell("user delete ann", admin)
    nobody = await shell("topic list", "ann.token")

    assert created[0] == written[0] == read[0] == deleted[0] == every[0] == 0, (
        created,
        written,
        read,
        deleted,
    )
    assert [each["name"] for each in json.loads(listed[1])] == ["admin", "ann", "carol"]
    assert [each["principal"] for each in json.loads(deciding[1])] == ["user:ann", "user:ann", "user:carol"]
    assert "a book" in read[1]
    assert (not_written[0], not_read[0], nobody[0]) == (4, 4, 4), (not_written, not_read, nobody)
    assert (wrong[0], gone[0]) == (2, 3)
    assert not (tmp_path / "b.token").exists()


async def test_a_profile_names_the_source_of_a_token(secured: Secured, tmp_path: Path) -> None:
    """A profile names a token's file or command; commands with a different address never send this token (rule C6)."""
    shell, admin = Shell(secured, tmp_path), tmp_path / "admin.token"
    token = admin.read_text().strip()
    created = [
        await shell(f"profile create {name} --bootstrap {shell.bootstrap} {source}")
        for name, source in (
            ("by-file", "--token-file admin.token"),
            ("by-command", f"--token-command 'cat {admin}'"),
            ("both", "--token-file admin.token --token-command 'cat x'"),
        )
    ]
    by_file = await shell("whoami --output json", profile="by-file")
    by_command = await shell("whoami --output json", profile="by-command")
    variable = await shell("whoami", "missing.token", profile="by-file")
    elsewhere = await shell(f"whoami --bootstrap {shell.bootstrap}", profile="by-file")
    stored = (tmp_path / "fairlead" / "profiles.toml").read_text()

    assert [code for code, _ in created] == [0, 0, 2]
    assert by_file[0] == by_command[0] == 0, (by_file, by_command)
    assert json.loads(by_file[1])["principal"] == json.loads(by_command[1])["principal"] == "user:admin"
    assert (variable[0], elsewhere[0]) == (2, 4), (variable, elsewhere)
    assert token not in stored + "".join(text for _, text in created)


async def test_the_page_on_tenants_limits_one(secured: Secured, tmp_path: Path) -> None:
    """The commands of docs/how-to/quotas.md set the limits of a tenant, which are listed and removed."""
    shell, admin = Shell(secured, tmp_path), str(tmp_path / "admin.token")
    page = (checkout.ROOT / "docs/how-to/quotas.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    ran = [await shell(line.removeprefix("fairlead "), admin) for line in block.splitlines()]
    listed = await shell("quota list --output json", admin)
    removed = await shell("quota remove 'user:shop.*'", admin)
    bad = await shell("quota set user:ann --produce lots", admin)

    assert {code for code, _ in (*ran, listed, removed)} == {0}, ran
    assert [(each["subject"], each["each"], each["shared"]) for each in json.loads(listed[1])] == [
        ("topics:shop.*", {}, {"partitions": 200}),
        (
            "user:shop.*",
            {"requests_per_second": 500},
            {"produce_bytes_per_second": 50 << 20, "fetch_bytes_per_second": 200 << 20},
        ),
    ]
    assert (bad[0], "lots" in bad[1]) == (2, True)
