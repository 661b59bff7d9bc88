"""A kill and restart of the tests' API server while clients use it."""

from __future__ import annotations

from threading import Thread

import pytest

from kubernetes_under_test import Kubernetes


@pytest.mark.scenario
@pytest.mark.serial
def test_a_killed_api_server_comes_back(kubernetes: Kubernetes, namespace: str) -> None:
    """After a kill and a restart, the API server still has its objects, and open waits and the audit log continue."""
    api = kubernetes.api
    note = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "note"}}
    mark = kubernetes.audit_mark()
    api.apply(note, namespace)
    seen: list[str] = []

    def wait() -> None:
        found = api.wait(
            "configmap/note", namespace, lambda now: now and "text" in now["metadata"].get("annotations", {})
        )
        seen.append(found["metadata"]["annotations"]["text"])

    waiting = Thread(target=wait)
    waiting.start()
    kubernetes.restart_api_server()
    api.annotate("configmap/note", namespace, {"text": "after"})
    waiting.join(timeout=60)
    written = [
        event.verb
        for event in kubernetes.audit(since=mark, namespace=namespace, writes=True)
        if event.name == "note"
    ]

    assert seen == ["after"]
    assert written == ["patch", "patch"]
