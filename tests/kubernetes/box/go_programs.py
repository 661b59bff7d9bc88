"""Builds the programs of the test Kubernetes from Go modules, once for each release of a program.

The module is used by the fixtures of this folder, by `make kubernetes`, and by `.ci/test.py`, which runs this file
while other tests run: `python tests/kubernetes/box/go_programs.py [NAME...]`. Built programs are kept in the user's
cache, one folder for each module, named by the hash of all inputs; compilers' caches are not needed afterwards. To use
another release: change the version in `go/<module>/go.mod`, and run `go mod tidy` there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2] / "etcd"))

from etcd_build import EtcdNotBuilt, callers_variables, compile_program, etcd_binaries, go

MODULES = Path(__file__).parent / "go"
RELEASE = "v1.36.3"
HELM_4 = "v4.3.1"
HELM_3 = "v3.21.4"
CONTAINERD = "v2.3.7"
KUBE_ROUTER = "v2.1.0"
COMPILERS_AT_ONCE = "2"


class ProgramsMissing(Exception):
    """Raised when a program could not be built; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program: the module that pins it, the package to build, and the values that the linker sets."""

    module: str
    package: str = "."
    variables: tuple[str, ...] = ()


def release_variables() -> tuple[str, ...]:
    """Return linker values without which the server reports v0.0.0, which charts with a minimum release refuse."""
    minor = RELEASE.split(".")[1]
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    values = (f"gitVersion={RELEASE}", "gitMajor=1", f"gitMinor={minor}", "gitTreeState=clean")
    return tuple(f"{package}.{value}" for package in packages for value in values)


_CONTAINERD = "github.com/containerd/containerd/v2"
_CONTAINERD_VERSION = (f"{_CONTAINERD}/version.Version={CONTAINERD}",)
_PLUGINS = "github.com/containernetworking/plugins/plugins"
_KUBE_ROUTER = "github.com/cloudnativelabs/kube-router/v2"

PROGRAMS = {
    "kubernetes": Program("kubernetes", variables=release_variables()),
    "kwok": Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "pause": Program("pause"),
    "containerd": Program("containerd", f"{_CONTAINERD}/cmd/containerd", _CONTAINERD_VERSION),
    "ctr": Program("containerd", f"{_CONTAINERD}/cmd/ctr", _CONTAINERD_VERSION),
    "containerd-shim-runc-v2": Program(
        "containerd", f"{_CONTAINERD}/cmd/containerd-shim-runc-v2", _CONTAINERD_VERSION
    ),
    "bridge": Program("cni", f"{_PLUGINS}/main/bridge"),
    "host-local": Program("cni", f"{_PLUGINS}/ipam/host-local"),
    "coredns": Program("coredns", "github.com/coredns/coredns"),
    "helm4": Program(
        "helm4", "helm.sh/helm/v4/cmd/helm", (f"helm.sh/helm/v4/internal/version.version={HELM_4}",)
    ),
    "helm3": Program(
        "helm3", "helm.sh/helm/v3/cmd/helm", (f"helm.sh/helm/v3/internal/version.version={HELM_3}",)
    ),
    "kube-state-metrics": Program("kube-state-metrics", "k8s.io/kube-state-metrics/v2"),
    "contour": Program("contour", "github.com/projectcontour/contour/cmd/contour"),
    "cert-manager": Program("cert-manager"),
    "kube-router": Program(
        "kube-router",
        f"{_KUBE_ROUTER}/cmd/kube-router",
        (f"{_KUBE_ROUTER}/pkg/version.Version={KUBE_ROUTER}",),
    ),
    "kubeconform": Program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
    "helm-unittest": Program("helm-unittest", "github.com/helm-unittest/helm-unittest/cmd/helm-unittest"),
}
# A single file contains six programs and acts as the program under whose name it is called.
KUBERNETES_NAMES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
CONTROL_PLANE = ("etcd", "kubernetes", "kwok", "pause")
NODES = ("containerd", "ctr", "containerd-shim-runc-v2", "bridge", "host-local", "coredns")
CHART_TOOLS = ("helm4", "helm3", "kubeconform", "helm-unittest")
POLICIES = ("kube-router",)
OF_SCENARIOS = ("kube-state-metrics", "contour", "cert-manager", *POLICIES)
"""Programs that only tests marked `scenario` need, and build."""


def cache_folder() -> Path:
    """Return the folder outside the checkout that outlives the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead" / "kubernetes"


def program_path(name: str) -> Path:
    """Return the path of a program, built or not, including the names of `KUBERNETES_NAMES`."""
    if name in KUBERNETES_NAMES:
        return program_path("kubernetes").with_name(name)
    module = PROGRAMS[name].module
    return cache_folder() / "programs" / f"{module}-{_fingerprint(module)}" / name


@cache
def program(name: str) -> Path:
    """Return an executable program, built if missing; one process builds a module, and others wait for it.

    Raise `ProgramsMissing`.
    """
    if name == "etcd":
        try:
            return etcd_binaries().etcd
        except EtcdNotBuilt as error:
            raise ProgramsMissing(str(error)) from error
    target = program_path(name)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build("kubernetes" if name in KUBERNETES_NAMES else name)
    return target


def module_folder(name: str, module: str) -> Path:
    """Return the source of a Go module that is not built, with the hash that the folder `name` pins."""
    done = subprocess.run(
        [go(), "mod", "download", "-json", module],
        cwd=MODULES / name,
        env=callers_variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(json.loads(done.stdout)["Dir"])


def link_programs(folder: Path) -> None:
    """Fill a folder for `PATH` with links to every program, including programs that are not built yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*PROGRAMS, *KUBERNETES_NAMES):
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(program_path(name))


@cache
def _fingerprint(module: str) -> str:
    """Return a hash of all inputs of a module's programs."""
    digest = hashlib.sha256()
    for path in sorted((MODULES / module).iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(repr(sorted(item for item in PROGRAMS.items() if item[1].module == module)).encode())
    return digest.hexdigest()[:16]


def _build(name: str) -> None:
    """Compile one program and install it atomically."""
    wanted, target = PROGRAMS[name], program_path(name)
    made = target.with_name(f"{name}.{os.getpid()}")
    linker = " ".join(("-s", "-w", *(f"-X {variable}" for variable in wanted.variables)))
    flags = ["-v", "-p", COMPILERS_AT_ONCE, "-trimpath", "-buildvcs=false", f"-ldflags={linker}"]
    try:
        command = [go(), "build", *flags, "-o", str(made), wanted.package]
        compile_program(name, command, MODULES / wanted.module)
    except EtcdNotBuilt as error:
        raise ProgramsMissing(str(error)) from error
    made.rename(target)
    if name == "kubernetes":
        for other in KUBERNETES_NAMES:
            link = target.with_name(other)
            link.unlink(missing_ok=True)
            link.symlink_to(name)


def main(names: list[str]) -> int:
    """Build the named programs, or all that `make test` needs, in the order in which most tests need them."""
    failed = 0
    for name in names or ("etcd", *(each for each in PROGRAMS if each not in OF_SCENARIOS)):
        try:
            print(program(name), flush=True)
        except ProgramsMissing as error:
            print(error, file=sys.stderr, flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
