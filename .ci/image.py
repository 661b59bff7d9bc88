"""Builds the container images of the project as OCI archives, with buildah, without a container runtime or registry.

`make image` and tests call this program. The image `fairlead` contains the broker, the operator and the command line,
`fairlead-spark` runs jobs on Spark, and `fairlead-etcd` contains etcd and etcdctl. The first two images are stages of
`Dockerfile`. The build has no network access: packages are installed from folders of wheels, which pip fills before the
build and checks against the hashes in constraints/. Layers, wheels and base images are kept in the user's cache, so
that an image is rebuilt in seconds after the code has changed. If no file has changed, the image is not rebuilt and
keeps its revision. The build needs root, buildah and mmdebstrap.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from image_bases import SUITE, Bases, ImageError, cache_folder, report, root_file_system, run

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = (ROOT / "constraints/image.txt", ROOT / "constraints/setup.txt")
SPARK_CONSTRAINTS = (ROOT / "constraints/image-spark.txt", ROOT / "constraints/setup.txt")
SOURCE_ONLY = "pyspark"
"""The only installed package that is published without a wheel."""
PACKAGE_FOLDERS = ("api", "broker", "client", "console", "operator", "spark", "kafka-records/src")
PYTHON_VERSION = "3.11"
GLIBC_MINOR = 36
"""Minor version of the C library in the base image; wheels for this version and for older versions can be installed."""
STORED_IMAGES_MAX = 500
"""Number of stored layers after which all layers are removed. Each build of changed code adds a layer of about 10
MB."""
sys.path.insert(0, str(ROOT / "tests/etcd"))


def build_fairlead(name: str, archive: Path) -> None:
    """Build the image with the broker, the console, the operator and the command line. Raises `ImageError`."""
    _build_stage(name, archive, CONSTRAINTS)


def build_spark(name: str, archive: Path) -> None:
    """Build the image for jobs on Spark. Raises `ImageError`."""
    _build_stage(name, archive, SPARK_CONSTRAINTS, "--target", "spark")


def _build_stage(name: str, archive: Path, constraints: tuple[Path, ...], *options: str) -> None:
    """Build a stage of the Dockerfile unless its files are unchanged."""
    current, stamp, made_of = _is_current(name, archive, _sources(constraints))
    if current:
        return
    _reset_when_large()
    bases = _bases()
    mounted = f"{_wheelhouse(constraints)}:/wheels:ro"
    _build(
        name,
        archive,
        ["--file", str(ROOT / "Dockerfile"), "--network", "none", "--volume", mounted, *options],
        {
            "BASE": bases.base,
            "BUILDER": bases.builder,
            "SPARK_BASE": bases.spark,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/wheels",
            "VERSION": _version(),
            "REVISION": _revision(),
        },
        ROOT,
        # Most files of the image are compressed already, and compressing them again would take most of the build time.
        packing=("--compression-format=gzip", "--compression-level=1") if "spark" in options else (),
    )
    stamp.write_text(made_of)


def build_etcd(name: str, archive: Path) -> None:
    """Build the image with etcd and its tools from the programs that the tests use. Raises `ImageError`."""
    from etcd_build import ETCDUTL, MODULE, EtcdNotBuilt, etcd_binaries, etcdutl_binary  # noqa: PLC0415 - a module of the tests

    try:
        programs, etcdutl = etcd_binaries(), etcdutl_binary()
    except EtcdNotBuilt as error:
        raise ImageError(str(error)) from error
    release = re.search(r"go\.etcd\.io/etcd/server/v3 v(\S+)", (MODULE / "go.mod").read_text())
    assert release is not None, "go.mod names the release"
    recipe = ROOT / ".ci/etcd.Dockerfile"
    current, stamp, made_of = _is_current(name, archive, (recipe, MODULE / "go.sum", ETCDUTL / "go.sum"))
    if not current:
        with TemporaryDirectory(prefix="fairlead-etcd-") as folder:
            for program in (programs.etcd, programs.etcdctl, etcdutl):
                shutil.copy(program, folder)
            _build(name, archive, ["--file", str(recipe)], {"VERSION": release[1]}, Path(folder))
        stamp.write_text(made_of)


def _build(
    name: str,
    archive: Path,
    options: list[str],
    arguments: dict[str, str],
    context: Path,
    *,
    packing: tuple[str, ...] = (),
) -> None:
    """Build one image, and write its archive."""
    given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
    command = _buildah(
        "bud", "--quiet", "--layers", "--pull-never", "--timestamp=0", "--tag", name, *options, *given
    )
    image = run([*command, str(context)], step=f"install into {name}").strip().rpartition("\n")[2]
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f".{archive.name}.part")
    part.unlink(missing_ok=True)
    run(_buildah("push", "--quiet", *packing, image, f"oci-archive:{part}:{name}"), step=f"pack {name}")
    part.rename(archive)


def _is_current(name: str, archive: Path, inputs: Iterable[Path]) -> tuple[bool, Path, str]:
    """Return whether the archive is current for the given files, the path of its stamp, and the text of a new stamp."""
    made_of = hashlib.sha256(name.encode())
    for path in (*inputs, Path(__file__), ROOT / ".ci/image_bases.py"):
        made_of.update(f"{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    stamp = archive.with_name(f".{archive.name}.made-of")
    text = made_of.hexdigest()
    return archive.exists() and stamp.exists() and stamp.read_text() == text, stamp, text


def _sources(constraints: tuple[Path, ...]) -> list[Path]:
    """Return the files from which an image of Fairlead is built."""
    packages = (path for folder in PACKAGE_FOLDERS for path in (ROOT / folder).rglob("*"))
    files = [path for path in packages if path.is_file() and "__pycache__" not in path.parts]
    named = ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE", "kafka-records/pyproject.toml",
             "kafka-records/setup.py", "kafka-records/README.md")  # fmt: skip
    return sorted([*files, *constraints, *(ROOT / name for name in named)])


def _reset_when_large() -> None:
    """Remove all layers when too many are stored, since buildah cannot tell which layers are still needed."""
    stored = run(_buildah("images", "--all", "--quiet"))
    if len(stored.splitlines()) > STORED_IMAGES_MAX:
        shutil.rmtree(cache_folder() / "buildah")


def _buildah(*arguments: str) -> list[str]:
    """Return the buildah command, which runs in its own mount namespace and stores all files below the cache."""
    store = cache_folder() / "buildah"
    (store / "tmp").mkdir(parents=True, exist_ok=True)
    return ["unshare", "--mount", "env", "BUILDAH_ISOLATION=chroot", f"TMPDIR={store / 'tmp'}", "buildah",
            "--storage-driver", "overlay", "--root", str(store / "root"), "--runroot", str(store / "run"),
            *arguments]  # fmt: skip


def _bases() -> Bases:
    """Return the names of the base images; build and load base images that are missing."""
    names = {}
    for name in ("base", "builder", "spark"):
        archive = root_file_system(name)
        tag = f"localhost/fairlead-{archive.stem.replace(f'{name}-', f'{name}:')}"
        if _stored(tag) is None:
            recipe = f"FROM scratch\nADD {archive.name} /\n"
            command = _buildah("bud", "--quiet", "--file", "-", "--tag", tag, str(archive.parent))
            run(command, text=recipe, step=f"store {tag}")
        names[name] = tag
    return Bases(**names)


def _stored(name: str) -> str | None:
    """Return the id of an image in the store; None if the store does not contain the image."""
    done = subprocess.run(
        _buildah("images", "--quiet", "--no-trunc", name), capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def _wheelhouse(constraints: tuple[Path, ...]) -> Path:
    """Return a folder with every package in the constraints, which pip downloads with its own configuration."""
    texts = [path.read_text() for path in constraints]
    key = hashlib.sha256("".join([*texts, f"{PYTHON_VERSION} {SUITE} {platform.machine()}"]).encode())
    folder = cache_folder() / "wheels" / key.hexdigest()[:16]
    if folder.exists():
        return folder
    part = folder.with_name(f"part-{folder.name}")
    part.mkdir(parents=True, exist_ok=True)
    # Each element is one package with its hashes.
    wanted = [one for text in texts for one in re.split(r"^(?=[a-z])", text, flags=re.MULTILINE) if one]
    sources = [one for one in wanted if one.startswith(f"{SOURCE_ONLY}==")]
    _download(part, [one for one in wanted if one not in sources], _platform_options())
    if sources:
        _download(part, sources, ["--no-binary=:all:", "--no-build-isolation"])
    part.rename(folder)
    return folder


def _download(folder: Path, wanted: list[str], options: list[str]) -> None:
    """Download packages, each given with its hashes, without dependencies, since the constraints are complete."""
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(wanted))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", *options]
    step = f"download {len(wanted)} Python packages"
    run([*command, f"--requirement={requirements}", f"--dest={folder}"], step=step)
    requirements.unlink()


def _platform_options() -> list[str]:
    """Return the options with which pip chooses wheels for the base image."""
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(5, GLIBC_MINOR + 1)]
    tags += [f"{name}_{machine}" for name in ("manylinux1", "manylinux2010", "manylinux2014")]
    abis = ("cp" + PYTHON_VERSION.replace(".", ""), "abi3", "none")
    options = ["--only-binary=:all:", f"--python-version={PYTHON_VERSION}", "--implementation=cp"]
    return [*options, *(f"--abi={abi}" for abi in abis), *(f"--platform={tag}" for tag in tags)]


def _version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _revision() -> str:
    """Return the commit that is checked out; `unknown` outside a clone."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


@contextmanager
def _alone() -> Iterator[None]:
    """Run only one build at a time: later builds wait, and then reuse the layers of the first build."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Build the requested images; return 1 with a message on stderr if a build fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--image", default="localhost/fairlead:dev", help="name of the image (%(default)s)")
    parser.add_argument(
        "--etcd-image", default="localhost/fairlead-etcd:dev", help="name of the etcd image (%(default)s)"
    )
    parser.add_argument(
        "--spark-image",
        default="localhost/fairlead-spark:dev",
        help="name of the Spark image (%(default)s)",
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build", help="folder for the archives (%(default)s)"
    )
    parser.add_argument("only", nargs="*", help="build only these images: fairlead, etcd, spark")
    given = parser.parse_args(arguments)
    builds = {
        "fairlead": (build_fairlead, given.image),
        "etcd": (build_etcd, given.etcd_image),
        "spark": (build_spark, given.spark_image),
    }
    if unknown := set(given.only) - builds.keys():
        parser.error(f"no image is called {', '.join(sorted(unknown))}")
    archives = {part: f"fairlead-{part}.oci.tar" for part in builds} | {"fairlead": "fairlead.oci.tar"}
    try:
        with _alone():
            for part in given.only or builds:
                build, name = builds[part]
                begun = time.monotonic()
                report(f"build {name}")
                archive = given.folder / archives[part]
                build(name, archive)
                size = archive.stat().st_size / 1e6
                print(f"{archive}: {name}, {size:.0f} MB, {time.monotonic() - begun:.1f} s", flush=True)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
