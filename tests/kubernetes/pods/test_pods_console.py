"""The console of a Cluster in a pod, opened by a browser in the network of the nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from browser_kit import CHROMIUM, violations, watched
from cluster_words import has
from pods_stage import SLOW_SECONDS, PodsStage, is_ready, pods_stage

if TYPE_CHECKING:
    from kube_client import Manifest
    from pods import KubernetesPods

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]
CONSOLE = "fairlead.dev/cluster=main,app.kubernetes.io/component=console"
KINDS = ("deployment", "service", "networkpolicy")
HOST = "console.fairlead.test"
PATHS = ["/", "/topics", "/topics/orders", "/topics/orders/messages", "/groups", "/brokers", "/brokers/0"]
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module")
def stage(kubernetes_pods: KubernetesPods, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodsStage]:
    """Yield three brokers with a console."""
    folder, policies = tmp_path_factory.mktemp("operator"), {"enabled": True}
    with pods_stage(kubernetes_pods, folder, console={}, networkPolicy=policies) as staged:
        yield staged


@contextmanager
def browser_in_box(stage: PodsStage, folder: Path, *options: str) -> Iterator[Browser]:
    """Run Chromium in the network of the nodes, where it finds services by name."""
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*stage.kubernetes.enter, CHROMIUM])} "$@"\n')
    program.chmod(0o700)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", *options])
        yield browser
        browser.close()


def console_pod(stage: PodsStage, options: set[str]) -> Manifest:
    """Wait until the only pod of the console is ready and has only these options; return the pod."""

    def holds(pods: list[Manifest]) -> bool:
        if len(pods) != 1 or not is_ready(pods[0]):
            return False
        given = set(pods[0]["spec"]["containers"][0]["args"])
        return {
            each for each in given if not each.startswith(("console", "--bootstrap", "--listen"))
        } == options

    pods = stage.kubernetes.api.wait_list(
        "pods", stage.namespace, holds, selector=CONSOLE, seconds=SLOW_SECONDS
    )
    found: Manifest = pods[0]
    return found


def until_open(page: Page, address: str, place: str) -> None:
    """Load a page until the Service leads to a console that shows a place, after the pod was replaced."""
    for _ in range(200):
        # A refused connection is an error.
        with suppress(Error):
            answer = page.goto(address)
            if answer is not None and answer.ok and page.locator(place).count():
                return
        page.wait_for_timeout(500)
    pytest.fail(f"{address} does not show {place}")


def test_the_console_of_a_cluster_is_used_in_a_browser(stage: PodsStage, tmp_path: Path) -> None:
    """The pod shows and changes the cluster, survives a kill, obeys changed settings, and ends with its field."""
    api, namespace = stage.kubernetes.api, stage.namespace
    address = f"http://main-console.{namespace}.svc:9580"
    stage.set("console", {})
    pod = console_pod(stage, set())
    for kind in KINDS:
        assert api.get(f"{kind}/main-console", namespace) is not None
    with browser_in_box(stage, tmp_path) as browser:
        page, wrong = watched(browser.new_context())
        until_open(page, address, ".verdict")
        expect(page.get_by_role("rowheader")).to_have_count(3)
        page.goto(f"{address}/create-topic")
        page.get_by_label("Name", exact=True).fill("orders")
        page.get_by_role("button", name="Create").click()
        expect(page).to_have_url(f"{address}/topics/orders")
        found = {}
        for path in PATHS:
            answer = page.goto(address + path)
            found[path] = (answer and answer.status, violations(page))
        topics = [each["name"] for each in stage.ask("topic", "list")]

        stage.kubernetes.kill(pod["metadata"]["name"], namespace)
        until_open(page, f"{address}/topics/orders", "h1")
        restarted = console_pod(stage, set())

        stage.set("console", {"readOnly": True, "hideRecords": ["ord*"]})
        console_pod(stage, {"--read-only", "--hide-records=ord*"})
        until_open(page, f"{address}/topics/orders", "header .tag:text('read-only')")
        hidden = page.goto(f"{address}/topics/orders/messages")
    stage.change({"op": "remove", "path": "/spec/console"})
    for kind in KINDS:
        api.wait(f"{kind}/main-console", namespace, lambda each: each is None, SLOW_SECONDS)

    assert found == dict.fromkeys(PATHS, (200, []))
    # Over http, Chromium uses a part of the headers only for names of the same machine.
    assert [each for each in wrong if not each.startswith("The Cross-Origin-Opener-Policy header")] == []
    assert "orders" in topics
    assert restarted["metadata"]["uid"] == pod["metadata"]["uid"], "the kubelet restarts the container"
    assert hidden is not None
    assert hidden.status == 403


def test_a_route_leads_to_the_console(stage: PodsStage, tmp_path: Path) -> None:
    """With an Ingress, the console answers only under the host of the Ingress, whose backend is its Service."""
    api, namespace = stage.kubernetes.api, stage.namespace
    route = {"kind": "Ingress", "host": HOST, "scheme": "http", "port": 80}
    stage.set("console", {"route": route})
    pod = console_pod(stage, {f"--public-url=http://{HOST}:80"})
    ingress = api.wait("ingress/main-console", namespace, bool, SLOW_SECONDS)
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    backend: dict[str, Any] = path["backend"]["service"]
    service = api.get(f"service/{backend['name']}", namespace)
    assert service is not None, "a rule leads to a Service"
    place = f"{service['spec']['clusterIP']}:{backend['port']['number']}"
    rules = f"--host-resolver-rules=MAP {HOST} {place}"
    with browser_in_box(stage, tmp_path, rules) as browser:
        page, _ = watched(browser.new_context())
        until_open(page, f"http://{HOST}/", ".verdict")
        other = page.goto(f"http://{place}/")
    token = stage.kubernetes.exec(
        pod["metadata"]["name"], namespace, "python", "-c", f"import os; print(os.path.exists('{ACCOUNT}'))"
    )
    stage.wait(has("Ready", "Available"))

    assert other is not None
    assert other.status == 421
    assert rule["host"] == HOST
    assert token.strip() == "False", "the pod has no token of the API server"
