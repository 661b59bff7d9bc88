"""OCI archives: the smallest image, and the images for real nodes."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections import deque
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
# Files that `make image` writes. The image of Spark takes 2 GB of memory on each node, so tests load it on one node
# only.
PRODUCT_IMAGES = (ROOT / "build/fairlead.oci.tar", ROOT / "build/fairlead-etcd.oci.tar")
SPARK_IMAGE = ROOT / "build/fairlead-spark.oci.tar"
PAUSE_IMAGE = "localhost/pause:1"


class ImagesMissing(Exception):
    """Raised when the images of the project could not be built; the message gives the reason."""


def make_product_images(*, spark: bool = False) -> None:
    """Build the images of brokers, etcd and, on request, Spark like `make image`; raise `ImagesMissing` on failure.

    A build is quick when nothing changed. The output of the build, with its progress, is copied to stderr while the
    build runs.
    """
    command = [sys.executable, str(ROOT / ".ci/image.py"), "fairlead", "etcd", *(["spark"] if spark else [])]
    last: deque[str] = deque(maxlen=100)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as building:
        assert building.stdout is not None, "a pipe was asked for"
        for line in building.stdout:
            last.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()
    if building.returncode:
        message = f"make image failed:\n{''.join(last)}"
        raise ImagesMissing(message)


def write_image(archive: Path, name: str, program: Path) -> None:
    """Write an image with one static program as its command."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        entry = tarfile.TarInfo(program.name)
        content = program.read_bytes()
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    blobs: dict[str, bytes] = {}

    def add(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    layer_reference = add(layer.getvalue(), "layer.v1.tar")
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_reference["digest"]]},
    }
    config_reference = add(json.dumps(config).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": config_reference, "layers": [layer_reference]}
    manifest_reference = add(json.dumps(manifest).encode(), "manifest.v1+json")
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [{**manifest_reference, "annotations": names}]}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": json.dumps(index).encode()}
    files |= {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
    with tarfile.open(archive, "w") as tar:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
