"""Clients in Python, Go, JavaScript and C: installs each where it is missing, and returns its steps.

Go programs are compiled, and JavaScript programs are installed, in the user's cache, in the versions of `go/go.mod` and
`node/package.json`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from client_steps import Client, ClientMissing, Steps, Target, check, finished, program_steps

from etcd_build import EtcdNotBuilt, cache_folder, compile_program, go

FOLDER: Final = Path(__file__).parent
PYTHON: Final = {
    "confluent-kafka": ("librdkafka", "librdkafka_program.py"),
    "kafka-python": ("kafka-python", "kafka_python_program.py"),
    "aiokafka": ("aiokafka", "aiokafka_program.py"),
}
"""Name and program of each Python client by its distribution."""
GO: Final = {
    "github.com/twmb/franz-go": ("franz-go", "franz"),
    "github.com/IBM/sarama": ("Sarama", "sarama"),
    "github.com/segmentio/kafka-go": ("kafka-go", "segmentio"),
}
"""Name and folder of each Go client by its module."""
KCAT_PACKAGES: Final = ("kcat", "librdkafka1", "libyajl2")
"""Packages of Debian that contain kcat and the libraries that a minimal Debian lacks."""


def cache() -> Path:
    """Return the folder of downloaded clients, outside the checkout."""
    folder = cache_folder().with_name("kafka_clients")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def python_clients() -> Iterator[Client]:
    """Yield the clients in Python."""
    for distribution, (name, program) in PYTHON.items():
        label = name if name == distribution else f"{name} (by {distribution})"
        yield Client(
            label, version(distribution), program_steps([sys.executable, str(FOLDER / "python" / program)])
        )


def go_clients() -> Iterator[Client]:
    """Yield the clients in Go, which are compiled when their steps begin."""
    definition = (FOLDER / "go/go.mod").read_text()
    for module, (name, folder) in GO.items():
        found = re.search(rf"^\t{re.escape(module)} v(\S+)$", definition, re.MULTILINE)
        assert found is not None, f"{module} is not in go.mod"
        yield Client(name, found[1], _go_steps(folder))


def _go_steps(folder: str) -> Steps:
    def steps(target: Target) -> Iterator[str]:
        program = cache() / f"go-{folder}"
        try:
            # Go keeps what it has compiled, so the program is as new as its source.
            command = [go(), "build", "-v", "-trimpath", "-buildvcs=false", "-o", str(program), f"./{folder}"]
            compile_program(folder, command, FOLDER / "go")
        except EtcdNotBuilt as error:
            raise ClientMissing(str(error)) from error
        yield from program_steps([str(program)])(target)

    return steps


def node_clients() -> Iterator[Client]:
    """Yield the client in JavaScript, which npm installs when its steps begin."""
    definition = FOLDER / "node/package.json"
    versions = json.loads(definition.read_text())["dependencies"]
    yield Client("KafkaJS", versions["kafkajs"], _node_steps(definition))


def _node_steps(definition: Path) -> Steps:
    def steps(target: Target) -> Iterator[str]:
        if shutil.which("npm") is None:
            message = "npm is not installed"
            raise ClientMissing(message)
        folder = cache() / f"node-{hashlib.sha256(definition.read_bytes()).hexdigest()[:16]}"
        if not (folder / "node_modules").is_dir():
            folder.mkdir(exist_ok=True)
            shutil.copy(definition, folder)
            check(finished(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"], folder=folder))
        # Node looks for packages above the folder of the program.
        shutil.copy(definition.with_name("kafkajs.mjs"), folder)
        yield from program_steps(["node", "kafkajs.mjs"], folder)(target)

    return steps


def kcat_clients() -> Iterator[Client]:
    """Yield kcat, which is downloaded from Debian where it is not installed."""
    try:
        program, environment = _kcat()
        text = finished([program, "-V"], environment=environment).stdout
        found = re.search(r"Version (\S+) .*librdkafka (\S+)", text)
        version_text = f"{found[1]} (librdkafka {found[2]})" if found else "unknown"
    except ClientMissing as missing:
        reason = str(missing)

        def absent(_: Target) -> Iterator[str]:
            raise ClientMissing(reason)
            yield

        yield Client("kcat", "unknown", absent)
        return

    def steps(target: Target) -> Iterator[str]:
        def kcat(*arguments: str, text: str = "") -> str:
            done = finished([program, "-b", target.bootstrap, *arguments], text=text, environment=environment)
            check(done)
            return done.stdout

        names = {each["topic"] for each in json.loads(kcat("-L", "-J"))["topics"]}
        assert target.topic in names, "the topic is not in the metadata"
        yield "list brokers and topics (-L)"
        lines = {f"key-{number}:value-{number}" for number in range(target.count)}
        kcat("-P", "-t", target.topic, "-K:", "-z", "lz4", text="\n".join(sorted(lines)))
        yield "produce (-P), with lz4"
        read = kcat("-C", "-t", target.topic, "-K:", "-e", "-o", "beginning", "-q")
        assert sorted(read.splitlines()) == sorted(lines), "the records are different"
        yield "consume all partitions to their ends (-C -e)"
        grouped = kcat(
            "-G", target.group, "-X", "auto.offset.reset=earliest", "-K:", "-e", "-q", target.topic
        )
        assert sorted(grouped.splitlines()) == sorted(lines), "the records of the group are different"
        yield "consume as a member of a group (-G)"
        found = kcat("-Q", "-t", f"{target.topic}:0:-1")
        assert found.split(":")[-1].strip() or "offset" in found, found
        yield "query offsets by time (-Q)"

    yield Client("kcat", version_text, steps)


def _kcat() -> tuple[str, dict[str, str]]:
    """Return kcat and the environment that it needs; raise `ClientMissing` if Debian does not provide it."""
    for name in ("kcat", "kafkacat"):
        installed = shutil.which(name)
        if installed is not None:
            return installed, {}
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        message = "kcat is not installed, and this system is not Debian"
        raise ClientMissing(message)
    folder = cache() / "kcat"
    if not folder.is_dir():
        partial = cache() / "kcat.partial"
        partial.mkdir(exist_ok=True)
        try:
            subprocess.run(
                ["apt-get", "download", *KCAT_PACKAGES], cwd=partial, check=True, capture_output=True
            )
            for package in partial.glob("*.deb"):
                subprocess.run(
                    ["dpkg-deb", "-x", str(package), str(partial)], check=True, capture_output=True
                )
        except subprocess.CalledProcessError as error:
            message = f"Debian's package kcat could not be downloaded: {error.stderr.decode()[-200:]}"
            raise ClientMissing(message) from error
        partial.rename(folder)
    [libraries] = {path.parent for path in folder.glob("usr/lib/**/librdkafka.so.1")}
    return str(folder / "usr/bin/kcat"), {"LD_LIBRARY_PATH": str(libraries)}
