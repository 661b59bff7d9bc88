"""The images of `make image`: their content, and how they run in a restricted pod.

The tests need root, buildah and mmdebstrap, like the build itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import checkout
from fairlead import Admin
from install_kit import clean_variables

# A build takes some minutes without a cache.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MEGABYTE = 1_000_000
USER = "10001:10001"
PACKAGES = "opt/fairlead/lib/python3*/site-packages"
# This script runs a program like a container runtime: the root is read-only except for mounted folders, and exec
# replaces each program with the next, so that signals reach the last program.
CONTAINER = """
set -eu
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o uid=10001,gid=10001 tmpfs "$root/var/lib/fairlead"
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image archive."""

    name: str
    manifest: dict[str, Any]
    config: dict[str, Any]
    root: Path

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the image."""
        return {
            name.removeprefix("org.opencontainers.image."): value
            for name, value in self.config["Labels"].items()
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the image's programs."""
        return dict(each.split("=", 1) for each in self.config["Env"])

    def command(self, *arguments: str, **environment: str) -> list[str]:
        """Return the command that runs a program of the image in a container, with additional variables."""
        chroot = shutil.which("chroot")
        assert chroot is not None, "coreutils has it"
        variables = [f"{name}={value}" for name, value in {**self.environment, **environment}.items()]
        program = [chroot, "--userspec=10001:10001", "--groups=10001", str(self.root), *arguments]
        mounting = ["unshare", "--mount", "sh", "-c", CONTAINER, "container", str(self.root)]
        return [*mounting, "env", "-i", *variables, *program]

    def run(self, *arguments: str) -> str:
        """Run a program of the image in a container; return its stdout and stderr."""
        done = subprocess.run(
            self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout


def built(which: str, folder: Path, *, unpacked: bool = True) -> Image:
    """Build an image, which is quick when nothing changed; unpack its files if they are needed."""
    done = subprocess.run(
        [sys.executable, checkout.ROOT / ".ci/image.py", which],
        env=clean_variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    archive = Path(done.stdout.partition(":")[0])
    layout, root = folder / "layout", folder / "root"
    root.mkdir()
    with tarfile.open(archive) as packed:
        packed.extractall(layout, filter="data")

    def blob(digest: str) -> Path:
        return layout / "blobs" / digest.replace(":", "/")

    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry["digest"]).read_text())
    for layer in manifest["layers"] if unpacked else ():
        subprocess.run(["tar", "-xzf", blob(layer["digest"]), "-C", root], check=True)
    config = json.loads(blob(manifest["config"]["digest"]).read_text())["config"]
    return Image(entry["annotations"]["org.opencontainers.image.ref.name"], manifest, config, root)


@contextmanager
def memory() -> Iterator[Path]:
    """Yield a folder in memory for gigabytes of small files, which a disk is slow to write and to remove."""
    with TemporaryDirectory(prefix="fairlead-image-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        try:
            yield Path(folder)
        finally:
            # Processes of a failed test keep the folder only for their own lifetime.
            subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def fairlead_image() -> Iterator[Image]:
    """Yield the image of broker, operator and command line."""
    with memory() as folder:
        yield built("fairlead", folder)


def files(image: Image) -> list[Path]:
    """Return every regular file."""
    return [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]


def test_the_image_says_what_it_is(tmp_path: Path) -> None:
    """The image has a numeric user, which Kubernetes can check, one program, and labels for scanners."""
    image = built("fairlead", tmp_path, unpacked=False)
    config = image.config

    assert image.name == "localhost/fairlead:dev"
    assert (config["User"], config["Entrypoint"], config["WorkingDir"]) == (
        USER,
        ["fairlead"],
        "/var/lib/fairlead",
    )
    assert config.get("Cmd") is None
    assert set(config["ExposedPorts"]) == {"9520/tcp", "9521/tcp", "9522/tcp"}
    assert {"title", "description", "licenses", "version", "revision"} <= image.labels.keys()
    assert re.fullmatch(r"[0-9a-f]{40}", image.labels["revision"])
    # Broken invariants must end the process, so Python must not remove assertions.
    assert "PYTHONOPTIMIZE" not in image.environment


@pytest.mark.scenario
def test_the_image_holds_what_runs_and_nothing_else(fairlead_image: Image) -> None:
    """The image has no shell, package manager, pip, tests, setuid or world-writable files; every module is compiled."""
    found = files(fairlead_image)
    programs = {
        path.name for path in found if os.access(path, os.X_OK) and path.parent.name in ("bin", "sbin")
    }
    packages = next(fairlead_image.root.glob(PACKAGES))
    ours = [path for path in found if packages in path.parents and path.suffix == ".py"]

    assert sum(layer["size"] for layer in fairlead_image.manifest["layers"]) < 150 * MEGABYTE
    assert programs == {"fairlead", "python3.11"}
    assert [path for path in fairlead_image.root.rglob("*") if path.lstat().st_mode & 0o6000] == []
    assert [path for path in found if path.lstat().st_mode & 0o002] == []
    assert not {"pip", "setuptools", "pytest", "hatchling"} & {path.name for path in packages.iterdir()}
    assert [path for path in packages.rglob("tests") if path.is_dir()] == []
    assert not [
        path for path in ours if not list((path.parent / "__pycache__").glob(f"{path.stem}.cpython-*.pyc"))
    ]


@pytest.mark.scenario
def test_its_programs_run_with_a_read_only_root(fairlead_image: Image) -> None:
    """Programs of the image run as its user, which has a name, with every needed package and a read-only root."""
    imports = (
        "pyarrow, pyarrow.parquet, pyarrow.csv, grpc, granian, numpy, kopf, kubernetes.aio, google.protobuf"
    )
    user = fairlead_image.run(
        "python3", "-c", f"import {imports}, getpass, os; print(getpass.getuser(), os.getuid(), os.getgid())"
    )
    written = fairlead_image.run(
        "python3",
        "-c",
        "import os; print([os.access(each, os.W_OK) for each in ('/', '/opt/fairlead', '/etc')])",
    )

    assert user.split() == ["fairlead", "10001", "10001"]
    assert written.strip() == "[False, False, False]"
    assert fairlead_image.run("fairlead", "version").startswith("fairlead ")
    assert "--peer-advertise" in fairlead_image.run("fairlead", "broker", "start", "--help")
    assert "--seconds" in fairlead_image.run("fairlead", "broker", "prepare-stop", "--help")
    assert "--namespaces" in fairlead_image.run("fairlead", "operator", "start", "--help")
    assert "--public-url" in fairlead_image.run("fairlead", "console", "--help")


@pytest.mark.scenario
def test_a_broker_serves_from_the_image(fairlead_image: Image) -> None:
    """A broker from the image writes only below its data folder, and a signal to the container's process stops it."""
    anywhere = {f"FAIRLEAD_{name}LISTEN": "127.0.0.1:0" for name in ("", "PEER_", "OPS_")}
    command = fairlead_image.command("fairlead", "broker", "start", "--output", "json", **anywhere)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            ready = broker.stdout.readline()
            assert ready, broker.communicate()[1]
            topic = asyncio.run(created(json.loads(ready)["brokers"][0]["data"]))
            broker.terminate()
            _, told = broker.communicate(timeout=60)
        finally:
            broker.kill()

    assert topic == "orders"
    assert broker.returncode == 0, told


async def created(url: str) -> str:
    """Create a topic; return its name from the broker's answer."""
    async with Admin(url) as admin:
        return (await admin.create_topic("orders")).name


def test_the_image_of_etcd_holds_three_static_programs(tmp_path: Path) -> None:
    """The image of etcd runs its static programs as the user of the other images, without other files in the root."""
    image = built("etcd", tmp_path)
    for name in ("proc", "tmp", "var/lib/fairlead"):
        (image.root / name).mkdir(parents=True)

    assert image.name == "localhost/fairlead-etcd:dev"
    assert (image.config["User"], image.config["Entrypoint"]) == (USER, ["etcd"])
    assert [path.relative_to(image.root).as_posix() for path in sorted(files(image))] == [
        "usr/local/bin/etcd",
        "usr/local/bin/etcdctl",
        "usr/local/bin/etcdutl",
    ]
    assert f"etcd Version: {image.labels['version']}" in image.run("etcd", "--version")
    assert f"etcdctl version: {image.labels['version']}" in image.run("etcdctl", "version")


@pytest.mark.scenario
def test_the_image_of_spark_runs_jobs() -> None:
    """The image of Spark starts the command line, which finds Java and both formats with a read-only root."""
    with memory() as folder:
        image = built("spark", folder)
        entry = image.config["Entrypoint"]
        info = image.run(*entry, "fairlead", "job", "info")
        listed = image.run(*entry, "fairlead", "job", "list")
        programs = {path.name for path in (image.root / "usr/bin").iterdir()}
        archives = [path.stem for path in image.root.glob(f"{PACKAGES}/pyspark/python/lib/*.zip")]

    assert image.name == "localhost/fairlead-spark:dev"
    assert (image.config["User"], entry[0]) == (USER, "/usr/bin/tini")
    assert sum(layer["size"] for layer in image.manifest["layers"]) < 800 * MEGABYTE
    assert programs == {
        "chmod", "df", "du", "ls", "python3", "python3.11", "readlink", "rm", "sh", "tini"
    }  # fmt: skip
    # Without a shell and these two archives, Spark does not look for data sources in Python.
    assert [name[:4] for name in sorted(archives)] == ["py4j", "pysp"]
    assert re.search(r"format fairlead-delta\s+ready", info), info
    assert re.search(r"format fairlead\s+ready", info), info
    assert "flight_windows" in listed


def test_bases_are_named_without_a_registry() -> None:
    """The base images are named without a registry, which the builder chooses."""
    files_of_builds = [checkout.ROOT / "Dockerfile", checkout.ROOT / ".ci/etcd.Dockerfile"]
    lines = [line for path in files_of_builds for line in path.read_text().splitlines()]
    named = [line.split("=", 1)[1] for line in lines if re.match(r"ARG (BASE|BUILDER)=", line)]

    assert named == ["python:3.11-slim-bookworm", "${BASE}"]
    assert {line.split()[1] for line in lines if line.startswith("FROM ")} == {
        "${BASE}", "${BUILDER}", "${SPARK_BASE}", "packages", "scratch", "spark-packages", "wheel"
    }  # fmt: skip
