"""Base images, which mmdebstrap builds from Debian packages, and which are kept in the user's cache.

The base of the final image contains Python and the libraries to which wheels link. The packages are unpacked but not
configured, so that the image has no shell and no package manager. The base of the Spark image also contains a Java
runtime. The builder contains Debian's pip and a C compiler on top of a small system. A base is rebuilt when its recipe
in this module changes; to get newer packages, remove the folder that `cache_folder` returns. Used by `image`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
PYTHON = "python3.11"
MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
# Packages in every image, each with the reason why it is needed.
RUNTIME_PACKAGES = (
    f"{PYTHON}-minimal",
    f"lib{PYTHON}-stdlib",
    "libstdc++6",  # pyarrow, grpcio, google-re2
    "base-files",  # /tmp, /etc/os-release: scanners read the release
    "ca-certificates",  # calls to https
    "netbase",  # /etc/services, /etc/protocols
    "tzdata",
)
# Additional packages that Spark needs, each with the programs of the package that are kept.
SPARK_PACKAGES = {
    "default-jre-headless": (),
    "tini": ("tini",),  # reaps orphaned child processes of forked workers
    "coreutils": ("chmod", "df", "du", "ls", "readlink", "rm"),  # programs that Spark and Hadoop call
}
# Files that are removed: dependencies of packages that are not configured, and files that no program of the image uses.
UNUSED = (
    "usr/share/doc usr/share/man usr/share/locale usr/share/info usr/share/lintian usr/share/perl5 usr/share/debconf "
    "usr/share/bash-completion usr/share/bug usr/share/common-licenses usr/share/pixmaps usr/share/applications "
    "usr/share/dpkg usr/share/polkit-1 usr/share/binfmts usr/sbin usr/games usr/src usr/include usr/libexec "
    "usr/lib/dpkg usr/lib/mime usr/lib/*/gconv usr/lib/*/engines-3 usr/lib/*/libdb-5.3.so "
    f"usr/lib/{PYTHON}/pydoc_data usr/lib/{PYTHON}/lib2to3 usr/lib/{PYTHON}/turtledemo usr/lib/{PYTHON}/distutils "
    "lib32 libx32 usr/lib32 usr/libx32 boot home media mnt opt srv var/local var/mail var/spool var/opt "
    "etc/cron.daily etc/logrotate.d etc/alternatives etc/resolv.conf etc/hostname"
)
REPORT_SECONDS = 15
"""Seconds between two progress reports of a running step."""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# Commands that compile the standard library, and create the files that packages usually write when they are configured.
# Without these commands, Python would compile the standard library at every start if the root is read-only.
RUNTIME_HOOKS = (
    f'cd "$1" && cat usr/share/ca-certificates/mozilla/*.crt > ".{CERTIFICATES}"',
    f'cd "$1" && rm -rf {UNUSED} && mkdir usr/sbin',
    f'ln -s {PYTHON} "$1/usr/bin/python3"',
    'printf "root:x:0:0:root:/root:/usr/sbin/nologin\\n" > "$1/etc/passwd"',
    'printf "root:x:0:\\n" > "$1/etc/group"',
    'printf "hosts: files dns\\n" > "$1/etc/nsswitch.conf"',
    f'chroot "$1" /usr/bin/{PYTHON} -m compileall -q --invalidation-mode unchecked-hash /usr/lib/{PYTHON}',
)
# Java reads certificates from its own store, which the Java package usually creates when it is configured.
KEY_STORE = (
    'set -eu; mkdir -p "$1/etc/ssl/certs/java"; mount -t proc proc "$1/proc"; '
    'cd "$1"; find usr/share/ca-certificates/mozilla -name "*.crt" -printf "+/%p\\n" | sort '
    '| chroot "$1" /usr/lib/jvm/default-java/bin/java -jar '
    "/usr/share/ca-certificates-java/ca-certificates-java.jar -storepass changeit; "
    'umount "$1/proc"'
)


class ImageError(Exception):
    """An image cannot be built on this machine; the message states what is missing or what failed."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Names of the base images in buildah's store."""

    base: str
    builder: str
    spark: str


def cache_folder() -> Path:
    """Return the folder outside the checkout that contains base images, wheels and layers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "image"


def root_file_system(name: str) -> Path:
    """Return the archive of the base `base`, `builder` or `spark`; build the base if its recipe has changed.

    Raises `ImageError`.
    """
    command = _recipe(name)
    key = hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
    made = cache_folder() / "bases" / f"{name}-{key}.tar"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_name(f"part-{made.name}")
        run([*command, SUITE, str(part), str(_sources())], step=f"unpack Debian packages of {name}")
        part.rename(made)
    return made


def run(
    command: list[str],
    *,
    folder: Path | None = None,
    text: str | None = None,
    step: str = "",
    report_seconds: float = REPORT_SECONDS,
) -> str:
    """Run a program, and return its standard output. Raises `ImageError` with the messages of the program.

    `step` is the name of a long run: stderr reports its start, and its progress every `report_seconds`.
    """
    begun = time.monotonic()
    if step:
        report(step)
    given = text
    output = errors = ""
    try:
        running = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError as error:
        message = f"{command[0]} is missing (on Debian: apt-get install buildah mmdebstrap)"
        raise ImageError(message) from error
    with running:
        while True:
            try:
                output, errors = running.communicate(given, timeout=report_seconds if step else None)
                break
            except subprocess.TimeoutExpired:
                given = None
                report(f"{step}: {time.monotonic() - begun:.0f} s")
    if running.returncode:
        message = f"{' '.join(command[:6])} ... ended with {running.returncode}:\n{output}{errors}"
        raise ImageError(message)
    return output


def report(text: str) -> None:
    """Print a line of progress on stderr."""
    # `print` would write the line ending separately.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _recipe(name: str) -> list[str]:
    common = ["mmdebstrap", "--quiet", "--format=tar"]
    if name == "builder":
        packages = "python3,python3-pip,python3-venv,gcc,libc6-dev,python3-dev"
        return [*common, "--variant=minbase", f"--include={packages}",
                "--dpkgopt=path-exclude=/usr/share/{doc,man,locale,info}/*"]  # fmt: skip
    more = SPARK_PACKAGES if name == "spark" else {}
    hooks = [_only_programs(PYTHON, *(program for kept in more.values() for program in kept)), *RUNTIME_HOOKS]
    if more:
        hooks.insert(0, KEY_STORE)
    packages = ",".join((*RUNTIME_PACKAGES, *more))
    # In mmdebstrap's variant `extract`, packages are only unpacked and not installed, so the hooks run after unpacking.
    return [*common, "--variant=extract", f"--hook-dir={MERGED_USR}", f"--include={packages}",
            *(f"--extract-hook={hook}" for hook in hooks)]  # fmt: skip


def _only_programs(*names: str) -> str:
    """Return a hook that removes every program except the given programs."""
    kept = " ".join(f'! -name "{name}"' for name in names)
    return f'cd "$1" && find usr/bin -mindepth 1 {kept} -delete'


def _sources() -> Path:
    """Return this machine's list of package sources, whose mirror is also used for the image."""
    candidates = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
    found = next((path for path in candidates if path.exists()), None)
    if found is None:
        message = "no list of Debian's package sources is configured on this machine"
        raise ImageError(message)
    return found
