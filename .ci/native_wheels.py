"""Builds the wheels of the native module of the Kafka listener, for every kind of Linux machine that is supported.

    python .ci/native_wheels.py DIRECTORY

`release` calls this program. Zig's compiler, a Python package, compiles for other machines and for older C libraries,
so that one machine builds all wheels. The module uses Python's stable ABI: each wheel serves every version of Python
from 3.11. A wheel that cannot be built is reported with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "kafka-records"
TARGETS: Final = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
"""Zig's name of each platform for which a wheel is built."""


def main(arguments: list[str]) -> int:
    """Build all wheels that this machine can build into a folder, and print a line for each."""
    into = Path(arguments[0])
    for platform, target in TARGETS.items():
        error = _build(into, platform, target)
        print(f"{platform}: not built: {error}" if error else f"{platform}: built")
    return 0


def _build(into: Path, platform: str, target: str) -> str | None:
    """Build the wheel of a platform; return the reason if it cannot be built."""
    compiler = f"{sys.executable} -m ziglang cc -target {target}"
    variables = {
        **os.environ,
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "CFLAGS": "-O3 -DNDEBUG -g0",
    }
    with TemporaryDirectory() as copy, TemporaryDirectory() as cache:
        # In a cache that other builds use, or that a clean-up has emptied in part, Zig may miss files.
        variables |= {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        # Objects of another platform beside the sources would be used again.
        shutil.copytree(
            FOLDER, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", "*.c", "*.egg-info")
        )
        command = [
            str(Path(sys.executable).parent / "uv"),
            "build",
            copy,
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            str(into),
            f"--config-setting=--build-option=--plat-name={platform}",
        ]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else _reason(done.stderr)


def _reason(said: str) -> str:
    """Return the first line about an error, or else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error") or "error:" in line]
    return next(iter([*errors, *reversed(lines)]), "no message")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
