"""Fixtures of a real Kubernetes, whose programs are built from Go modules, for every test in this folder.

`kubernetes` is a control plane (etcd, API server, controllers, scheduler) with three fake nodes in three zones, whose
pods become Ready at once and run nothing; `kwok_stages.yaml` describes how a test scripts these pods. The workers of a
run share one control plane. Tests run outside its box and reach the API server by `kubernetes.api`, at an address that
is valid inside and outside; programs that need the network of the box are started with `kubernetes.enter` before their
command, or by `kubernetes.run`. Every test uses a separate namespace (the fixture `namespace`) and waits for no
deletion.

`door` is a proxy for the API server that one test can make slow, failing or closed, for one program only.

`kubernetes_pods` has three real nodes in three zones (containerd, kubelet, services and DNS), instead of fake nodes,
with the images of `make image`. Programs that are started with `kubernetes_pods.enter` reach pods and services by name.
`kubernetes_policies` has one real node, in whose network kube-router enforces network policies.

`KUBERNETES_BOX=dev` in the environment uses the box that `make kubernetes` started, instead of starting a box;
`KUBERNETES_PODS_BOX=pods` does so for real nodes, with their current images (`make kubernetes KUBERNETES="--name pods
up --real-nodes 3"`, and `KUBERNETES="--name pods images"` after each change), and `KUBERNETES_POLICIES_BOX=policies`
for a node that enforces policies (`KUBERNETES="--name policies up --real-nodes 1 --policies"`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import worker_groups
from box import Box, BoxUnusable
from chart_tools import alone
from doors import Door
from go_programs import CHART_TOOLS, ProgramsMissing, program
from images import ImagesMissing, make_product_images
from kubernetes_under_test import Kubernetes, Size, shared
from operator_process import Operators, install_definitions
from pods import KubernetesPods, load_product_images
from pods_stage import PodsStage, pods_stage

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
TIMEOUT_SECONDS = 300
KEPT_BOXES = {"kubernetes_pods": "KUBERNETES_PODS_BOX", "kubernetes_policies": "KUBERNETES_POLICIES_BOX"}
"""The fixtures with real nodes, each with the variable that names the box to use instead of starting a box."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin that keeps tests on one worker where two workers would wait for each other."""
    config.pluginmanager.register(worker_groups)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as slow, since `make test-fast` needs neither Go nor root."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                # The first test also waits for the start of a box, on a loaded machine.
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build all programs before the first test, so that no test's timeout includes a build."""
    if session.config.option.collectonly:
        return
    if not any(item.get_closest_marker("kubernetes") for item in session.items):
        return
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    kept = {name for name, variable in KEPT_BOXES.items() if os.environ.get(variable)}
    used = fixtures & set(KEPT_BOXES)
    size = Size(real_nodes=int(bool(used)), policies="kubernetes_policies" in fixtures)
    try:
        size.check_machine()
        for name in (*size.programs, *CHART_TOOLS):
            program(name)
        if used - kept:
            make_product_images(spark="spark_node" in fixtures)
    except (ProgramsMissing, ImagesMissing, BoxUnusable) as error:
        reason = f"{error}\ntests marked kubernetes need it; leave them out with -m 'not kubernetes'"
        pytest.exit(reason, returncode=pytest.ExitCode.USAGE_ERROR)


def _box_name(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the name of the box for the given kind, which all workers of a run share."""
    run = getattr(request.config, "workerinput", {}).get("testrunuid", str(os.getpid()))
    return f"{kind}-{run[:12]}"


def _control_plane(kind: str, request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    kept = os.environ.get("KUBERNETES_BOX")
    if kept:
        yield Kubernetes(Box(kept))
        return
    with shared(_box_name(kind, request)) as running:
        yield running


@pytest.fixture(scope="session")
def kubernetes(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """Yield a control plane with fake nodes, one for all workers of the run."""
    yield from _control_plane("tests", request)


def _scope_of_pods(fixture_name: str, config: pytest.Config) -> Literal["session", "module"]:
    """Return "module" in a run of all tests, so that the nodes end with the only file that uses them."""
    del fixture_name
    named = any(argument.partition("::")[0].endswith(".py") for argument in config.args)
    return "session" if named or "scenario" in config.option.markexpr else "module"


@pytest.fixture(scope=_scope_of_pods)
def kubernetes_pods(request: pytest.FixtureRequest) -> Iterator[KubernetesPods]:
    """Yield three real nodes in three zones with the images of the project, one set for all workers."""
    yield from _real_nodes("pods", Size(fake_nodes=0, real_nodes=3), request)


@pytest.fixture(scope="module")
def kubernetes_policies(request: pytest.FixtureRequest) -> Iterator[KubernetesPods]:
    """Yield one real node with the images of the project, in whose network kube-router enforces network policies."""
    yield from _real_nodes("policies", Size(fake_nodes=0, real_nodes=1, policies=True), request)


def _real_nodes(kind: str, size: Size, request: pytest.FixtureRequest) -> Iterator[KubernetesPods]:
    kept = os.environ.get(KEPT_BOXES[f"kubernetes_{kind}"])
    if kept:
        yield KubernetesPods(Box(kept))
        return
    with shared(_box_name(kind, request), size, prepare=load_product_images) as started:
        yield KubernetesPods(started.box)


@pytest.fixture(scope="module")
def stage(kubernetes_pods: KubernetesPods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodsStage]:
    """Yield three brokers on real pods with three etcd members and an operator, shared by the tests of a file."""
    etcd = {"managed": {"replicas": 3, "storage": {"size": "1Gi"}}}
    with pods_stage(kubernetes_pods, tmp_path_factory.mktemp("operator"), etcd=etcd) as staged:
        yield staged


@pytest.fixture
def door(kubernetes: Kubernetes) -> Iterator[Door]:
    """Yield a proxy for the API server, for the test's own clients, that the test can slow down, break or close."""
    with kubernetes.door() as opened:
        yield opened


@pytest.fixture(scope="session")
def second_kubernetes(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """Yield a second control plane, for tests that change objects of a whole Kubernetes cluster."""
    yield from _control_plane("alone", request)


@pytest.fixture
def kubernetes_alone(second_kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """Yield the second control plane for exclusive use by one test, initially without Fairlead's definitions."""
    with alone(second_kubernetes):
        yield second_kubernetes


@pytest.fixture
def namespace(kubernetes: Kubernetes) -> str:
    """Return a namespace for one test, with restricted pod security."""
    return kubernetes.namespace()


@pytest.fixture
def operators(kubernetes: Kubernetes, tmp_path: Path) -> Iterator[Operators]:
    """Yield a starter of operator processes with the chart's rights, and stop them at the end."""
    install_definitions(kubernetes)
    starter = Operators(kubernetes, tmp_path)
    try:
        yield starter
    finally:
        starter.stop_all()
