"""A small synchronous client of the API server for tests, with waits that do not sleep.

Objects are dictionaries, as in the API. A reference is written as for kubectl, `statefulset/main-a`: kind, plural or
short name, in any letter case, with the group when it is ambiguous (`clusters.fairlead.dev/main`). The client works
inside and outside the box and is thread-safe.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml

Manifest = dict[str, Any]
Manifests = list[Manifest]
WAIT_SECONDS = 60.0
READ_SECONDS = 60.0
AWAY_SECONDS = 0.2
FIELD_MANAGER = "tests"
# Statuses of a server that is starting or busy, or has just received a definition; a repeated request succeeds.
PASSING = frozenset({404, 429, 500, 502, 503, 504})
# Seconds for which discovery is repeated for a kind that is missing because its definition is new.
DISCOVERY_SECONDS = 20.0


class Refused(Exception):
    """An error answer from the API server."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Store status, reason and message of the answer."""
        super().__init__(f"{status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class WaitedInVain(AssertionError):
    """Raised when a condition was not met in time; the message contains the last observed state."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind as returned by discovery."""

    prefix: str
    plural: str
    kind: str
    group: str
    namespaced: bool
    names: frozenset[str]

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of the list if there is no name; namespace None means all namespaces."""
        parts = [self.prefix]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        return "/".join(part for part in (*parts, self.plural, name, subresource) if part)


class KubeClient:
    """Client with the rights of one kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        """Read server, authority and user, without a request."""
        # The kubeconfig is JSON from the harness, and YAML after kubectl has changed it (`kubectl config set-context`).
        document = yaml.safe_load(kubeconfig.read_text())
        cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        self._headers: dict[str, str] = {}
        if "token" in user:
            self._headers["authorization"] = f"Bearer {user['token']}"
        else:
            _load_client_certificate(context, user, kubeconfig)
        self._server = str(cluster["server"])
        self._pool = urllib3.PoolManager(maxsize=16, ssl_context=context, timeout=READ_SECONDS, retries=False)
        self._resources: dict[str, Resource] = {}

    # ---- objects

    def apply(
        self,
        manifests: Manifest | Manifests | str,
        namespace: str | None = None,
        *,
        dry_run: bool = False,
    ) -> Manifests:
        """Apply manifests or a YAML text on the server, in order; return the stored objects.

        `namespace` is for objects without a namespace. Raise `Refused`.
        """
        return [self._apply_one(manifest, namespace, dry_run=dry_run) for manifest in _documents(manifests)]

    def create(self, manifest: Manifest, namespace: str | None = None, *, dry_run: bool = False) -> Manifest:
        """Create one object, which must not exist; `generateName` is allowed. Raise `Refused`."""
        resource = self._resource_of(manifest)
        path = resource.path(manifest["metadata"].get("namespace", namespace))
        return self.request("POST", path, manifest, query={"dryRun": "All"} if dry_run else {})

    def get(self, reference: str, namespace: str | None = None) -> Manifest | None:
        """Return an object, or None when it does not exist."""
        try:
            return self.request("GET", self._path(reference, namespace))
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> Manifests:
        """Return the objects of a kind in a namespace or in all namespaces, optionally filtered by a label selector."""
        path = self.resource(kind).path(namespace)
        answer = self.request("GET", path, query={"labelSelector": selector} if selector else {})
        return [self._typed(item, answer) for item in answer["items"]]

    def patch(
        self,
        reference: str,
        namespace: str | None,
        patch: Manifest | Manifests,
        *,
        subresource: str = "",
    ) -> Manifest:
        """Patch an object: a dictionary is a merge patch, a list a JSON patch. Raise `Refused`."""
        kind = "json-patch" if isinstance(patch, list) else "merge-patch"
        path = self._path(reference, namespace, subresource)
        return self.request("PATCH", path, patch, content_type=f"application/{kind}+json")

    def annotate(
        self, reference: str, namespace: str | None, annotations: Mapping[str, str | None]
    ) -> Manifest:
        """Set annotations; remove each annotation whose value is None."""
        return self.patch(reference, namespace, {"metadata": {"annotations": dict(annotations)}})

    def delete(
        self, reference: str, namespace: str | None = None, *, propagation: str = "Background"
    ) -> None:
        """Delete an object, which may be missing, without waiting for its removal."""
        try:
            self.request("DELETE", self._path(reference, namespace), {"propagationPolicy": propagation})
        except Refused as refusal:
            if refusal.status != 404:
                raise

    def evict(self, pod: str, namespace: str) -> None:
        """Evict a pod; raise `Refused` with 429 when a budget forbids it."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        self.request("POST", self._path(f"pod/{pod}", namespace, "eviction"), body)

    def token(self, account: str, namespace: str, *, seconds: int = 7200, audience: str | None = None) -> str:
        """Return a token of a service account that is valid for `seconds`; the default audience is the API server."""
        body: Manifest = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        if audience is not None:
            body["spec"]["audiences"] = [audience]
        answer = self.request("POST", self._path(f"serviceaccount/{account}", namespace, "token"), body)
        return str(answer["status"]["token"])

    # ---- waiting

    def wait(
        self,
        reference: str,
        namespace: str | None,
        predicate: Callable[[Manifest | None], object],
        seconds: float = WAIT_SECONDS,
    ) -> Manifest:
        """Wait until a predicate holds for an object, or for None when it is missing; return the object.

        Uses a watch. Raise `WaitedInVain`. When the predicate holds for a missing object, {} is returned.
        """
        name = reference.partition("/")[2]
        kind = reference.partition("/")[0]

        def holds(objects: Manifests) -> bool:
            return bool(predicate(objects[0] if objects else None))

        found = self.wait_list(kind, namespace, holds, fields=f"metadata.name={name}", seconds=seconds)
        return found[0] if found else {}

    def wait_list(
        self,
        kind: str,
        namespace: str | None,
        predicate: Callable[[Manifests], object],
        *,
        selector: str = "",
        fields: str = "",
        seconds: float = WAIT_SECONDS,
    ) -> Manifests:
        """Wait until a predicate holds for all objects of a kind, by label or field selector; return the objects.

        Restarts of the API server and temporary refusals (`PASSING`) do not end the wait. Raise `WaitedInVain`.
        """
        deadline = time.monotonic() + seconds
        query = {
            name: text for name, text in (("labelSelector", selector), ("fieldSelector", fields)) if text
        }
        objects: dict[str, Manifest] = {}
        trouble: Exception | None = None
        while time.monotonic() < deadline:
            try:
                for objects in self._watched(kind, namespace, query, deadline):
                    if predicate(list(objects.values())):
                        return list(objects.values())
            except (urllib3.exceptions.HTTPError, Refused) as error:
                if isinstance(error, Refused) and error.status not in PASSING:
                    raise
                trouble = error
                # An API server that restarts does not report when it is available again.
                Event().wait(AWAY_SECONDS)
        where = f"{kind} {selector or fields} of {namespace or 'all namespaces'}"
        message = f"waited {seconds} s in vain for {where}; last seen:\n{_shown(objects)}"
        raise WaitedInVain(message) from trouble

    def _watched(
        self, kind: str, namespace: str | None, query: dict[str, str], deadline: float
    ) -> Iterator[dict[str, Manifest]]:
        """Yield all objects by uid, first as listed and later after each change, until the watch ends."""
        path = self.resource(kind).path(namespace)
        listed = self.request("GET", path, query=query)
        objects = {item["metadata"]["uid"]: self._typed(item, listed) for item in listed["items"]}
        yield objects
        seconds = max(1, int(deadline - time.monotonic()) + 1)
        watch = {
            **query,
            "watch": "true",
            "resourceVersion": listed["metadata"]["resourceVersion"],
            "timeoutSeconds": str(seconds),
        }
        with self._stream(path, watch, seconds + 5) as lines:
            for line in lines:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                uid = event["object"]["metadata"]["uid"]
                if event["type"] == "DELETED":
                    objects.pop(uid, None)
                else:
                    objects[uid] = event["object"]
                yield objects

    # ---- HTTP

    def resource(self, name: str) -> Resource:
        """Return the kind of a name as kubectl resolves it, and wait for a kind that is being defined."""
        deadline = time.monotonic() + DISCOVERY_SECONDS
        while (found := self._resources.get(name.lower())) is None:
            self._discover()
            if name.lower() not in self._resources and time.monotonic() > deadline:
                message = f"the API server knows no kind {name!r}"
                raise WaitedInVain(message)
        return found

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Manifest:
        """Send one request and return the answer; raise `Refused`, or urllib3's errors if no server answers."""
        url = f"{self._server}/{path.lstrip('/')}" + (f"?{urlencode(query)}" if query else "")
        headers = {**self._headers, "accept": "application/json", "content-type": content_type}
        data = None if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, url, body=data, headers=headers)
        if answer.status >= 400:
            raise _refusal(answer.status, answer.data)
        result: Manifest = json.loads(answer.data)
        return result

    @contextmanager
    def _stream(self, path: str, query: dict[str, str], seconds: float) -> Iterator[Iterator[bytes]]:
        """Yield the lines of an answer as they are received, until the connection ends."""
        url = f"{self._server}/{path.lstrip('/')}?{urlencode(query)}"
        answer = self._pool.request(
            "GET",
            url,
            headers=self._headers,
            preload_content=False,
            timeout=urllib3.Timeout(10, read=seconds),
        )
        try:
            yield _lines(answer)
        finally:
            answer.close()

    def _apply_one(self, manifest: Manifest, namespace: str | None, *, dry_run: bool) -> Manifest:
        metadata = manifest["metadata"]
        path = self._resource_of(manifest).path(metadata.get("namespace", namespace), metadata["name"])
        query = {"fieldManager": FIELD_MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return self.request("PATCH", path, manifest, query=query, content_type="application/apply-patch+yaml")

    def _resource_of(self, manifest: Manifest) -> Resource:
        """Return the manifest's kind in the manifest's version."""
        version = manifest["apiVersion"]
        group = version.rpartition("/")[0]
        found = self.resource(f"{manifest['kind']}.{group}" if group else manifest["kind"])
        return replace(found, prefix=f"apis/{version}" if group else f"api/{version}")

    def _path(self, reference: str, namespace: str | None, subresource: str = "") -> str:
        kind, _, name = reference.partition("/")
        assert name, f"{reference!r} is not of the form kind/name"
        return self.resource(kind).path(namespace, name, subresource)

    def _typed(self, item: Manifest, answer: Manifest) -> Manifest:
        """Return an item of a list with its kind and version, which the items of a list omit."""
        kind = str(answer["kind"]).removesuffix("List")
        return {"apiVersion": answer["apiVersion"], "kind": kind, **item}

    def _discover(self) -> None:
        """Discover all kinds; if two groups have a kind of the same name, the first group keeps the name."""
        accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        found: dict[str, Resource] = {}
        for root in ("api", "apis"):
            answer = self._pool.request(
                "GET", f"{self._server}/{root}", headers={**self._headers, "accept": accept}
            )
            if answer.status >= 400:
                raise _refusal(answer.status, answer.data)
            for group in json.loads(answer.data)["items"]:
                for resource in _resources_of(root, group):
                    for name in resource.names:
                        found.setdefault(name, resource)
        self._resources = found


def _resources_of(root: str, group: Manifest) -> Iterator[Resource]:
    """Yield the kinds of a group, preferred version first."""
    group_name = group.get("metadata", {}).get("name", "")
    for version in group["versions"]:
        prefix = "/".join(part for part in (root, group_name, version["version"]) if part)
        for item in version.get("resources", []):
            kind = item["responseKind"]["kind"]
            short = {item["resource"], item.get("singularResource", ""), kind, *item.get("shortNames", [])}
            names = {name.lower() for name in short if name}
            full = {f"{name}.{group_name}" for name in names} if group_name else set()
            namespaced = item["scope"] == "Namespaced"
            every_name = frozenset(names | full)
            yield Resource(prefix, item["resource"], kind, group_name, namespaced, every_name)


def _documents(manifests: Manifest | Manifests | str) -> Manifests:
    """Return single objects from a YAML text, a list, or an object of the kind List."""
    if isinstance(manifests, str):
        return [
            item for document in yaml.safe_load_all(manifests) if document for item in _documents(document)
        ]
    if isinstance(manifests, list):
        return manifests
    return manifests["items"] if manifests.get("kind") == "List" else [manifests]


def _refusal(status: int, data: bytes) -> Refused:
    try:
        said = json.loads(data)
        return Refused(status, said.get("reason", ""), said.get("message", ""))
    except (ValueError, AttributeError):
        return Refused(status, "", data.decode(errors="replace"))


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield whole lines until the answer ends, breaks off or stalls."""
    rest = b""
    try:
        for chunk in answer.stream(amt=None):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
    except urllib3.exceptions.HTTPError:
        return


def _load_client_certificate(context: ssl.SSLContext, user: Mapping[str, str], kubeconfig: Path) -> None:
    """Load a client certificate from temporary files next to the kubeconfig, as the standard library requires files."""
    with tempfile.TemporaryDirectory(dir=kubeconfig.parent) as folder:
        certificate, key = Path(folder, "crt"), Path(folder, "key")
        certificate.write_bytes(base64.b64decode(user["client-certificate-data"]))
        key.touch(mode=0o600)
        key.write_bytes(base64.b64decode(user["client-key-data"]))
        context.load_cert_chain(certificate, key)


def _shown(objects: Mapping[str, Manifest]) -> str:
    """Return a summary of objects for a failure message."""
    brief = []
    for item in objects.values():
        metadata = {name: item["metadata"].get(name) for name in ("name", "annotations", "deletionTimestamp")}
        brief.append({"metadata": metadata, "status": item.get("status"), "spec": item.get("spec")})
    return yaml.safe_dump(brief, sort_keys=False)[:6000] if brief else "nothing"
