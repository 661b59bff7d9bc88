"""The commands of the page on security, as a user runs them: an authority, a broker, a profile, a client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import checkout
from page_kit import blocks
from warm_programs import search_path

FREE = "127.0.0.1:0"


def test_the_commands_of_the_page_secure_a_broker(tmp_path: Path) -> None:
    """A broker process uses certificates made as on the page, and commands call the broker over TLS with a profile."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    environment = {**kept, "PATH": search_path(), "XDG_CONFIG_HOME": str(tmp_path)}
    page = (checkout.ROOT / "docs/how-to/security.md").read_text(encoding="utf-8")
    make, start, use = (block.text for block in blocks(page, "sh"))
    [program] = (block.text for block in blocks(page, "python"))
    subprocess.run(["sh", "-e", "-c", make], cwd=tmp_path, check=True, capture_output=True)
    assert start.startswith("fairlead broker start ")
    arguments = start.removeprefix("fairlead broker start ").split()
    broker = subprocess.Popen(
        [
            "fairlead", "broker", "start", *arguments, "--data", "data", "--output", "json",
            "--listen", FREE, "--peer-listen", FREE, "--ops-listen", FREE,
        ],
        cwd=tmp_path, stdout=subprocess.PIPE, env=environment,
    )  # fmt: skip
    try:
        assert broker.stdout is not None
        [ready] = json.loads(broker.stdout.readline())["brokers"]
        script = use.replace("https://127.0.0.1:9520", ready["data"])
        script += f"{sys.executable} program.py\n"
        produced = f"async def main():\n{indent(program, '    ')}".replace(
            "https://127.0.0.1:9520", ready["data"]
        )
        (tmp_path / "program.py").write_text(
            f"import asyncio\nfrom fairlead import Producer\n{produced}\nasyncio.run(main())\n"
        )
        script += "echo UA1714 | fairlead produce flights\nfairlead consume flights --from-beginning -n 2\n"
        done = subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=tmp_path, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip

        assert done.returncode == 0, done.stderr
        assert {"UA1545", "UA1714"} <= set(done.stdout.split())
        assert ready["data"].startswith("https://")
    finally:
        broker.terminate()
        broker.wait()
        broker.stdout.close()
