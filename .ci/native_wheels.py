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
    with TemporaryDirectory() as copy:
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
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
