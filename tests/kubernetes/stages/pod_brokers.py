"""Brokers of fake pods that run with the settings of their pod: variables, files of volumes, and projected tokens.

`PodBrokers` does what a kubelet does with the parts of a pod that matter for security. Addresses of the pod become
loopback addresses that differ by broker, with one port for each port of the pod.
"""

from __future__ import annotations

import base64
import os
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from urllib3.exceptions import HTTPError

from broker_processes import BrokerProcesses
from kube_client import Refused
from warm_programs import WarmProcess, start

if TYPE_CHECKING:
    from kube_client import Manifest

EVERY_ADDRESS = re.compile(r"\[::\]")
HOST = re.compile(r"[^/,:\[\]]+:(\d+)$")
PORTS = (9520, 9521, 9522, 9523, 9524)
UPDATE_SECONDS = 0.5
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(slots=True)
class PodBrokers(BrokerProcesses):
    """Brokers with the settings of their pods; the API server is at `server` with `authority`."""

    server: str = ""
    authority: Path = Path()
    folders: dict[tuple[int, str], Path] = field(default_factory=dict)
    """Folder for each broker and mounted path."""
    volumes: dict[Path, Manifest] = field(default_factory=dict)

    def port(self, number: int) -> int:
        """Return the port on which a broker serves in place of a port of its pod."""
        return self.ports[0] + PORTS.index(number)

    @property
    def tls_url(self) -> str:
        """The operator's address template for brokers with TLS."""
        return f"https://127.0.1.{{id}}:{self.port(9524)}"

    def follow_volumes(self) -> None:
        """Write changed Secrets and ConfigMaps into the folders until closed, as a kubelet does."""
        while not self.over.wait(UPDATE_SECONDS):
            for folder, volume in tuple(self.volumes.items()):
                with suppress(HTTPError, Refused, OSError):
                    self._write(folder, volume)

    def _start(self, broker: int) -> WarmProcess:
        pod = self.client.get(f"pod/main-a-{broker}", self.namespace)
        assert pod is not None, "the pod of a broker exists"
        [container] = [each for each in pod["spec"]["containers"] if each["name"] == "broker"]
        by_name = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for mount in container["volumeMounts"]:
            volume = by_name.get(mount["name"], {})
            folder = self.folder / f"volumes-{broker}" / mount["name"]
            if {"secret", "configMap", "projected"} & volume.keys():
                folder.mkdir(parents=True, exist_ok=True)
                self.folders[broker, mount["mountPath"]] = folder
                self._write(folder, volume)
                if "projected" not in volume:
                    self.volumes[folder] = volume
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        settings = {name: self._here(broker, text) for name, text in given.items()}
        settings |= {
            "FAIRLEAD_ID": str(broker),
            "FAIRLEAD_DATA": str(self.folder / f"broker-{broker}"),
            "FAIRLEAD_ETCD": ",".join(self.etcd),
            "FAIRLEAD_CONFIG": str(self.folders[broker, "/etc/fairlead"] / "broker.yaml"),
        }
        account = self.folders.get((broker, ACCOUNT))
        if account is not None:
            token = (account / "token").read_text()
            settings |= {
                "FAIRLEAD_ISSUERS__K8S__ISSUER": _issuer_of(token),
                "FAIRLEAD_ISSUERS__K8S__JWKS": f"{self.server}/openid/v1/jwks",
                "FAIRLEAD_ISSUERS__K8S__CA": str(self.authority),
                "FAIRLEAD_ISSUERS__K8S__BEARER_FILE": str(account / "token"),
            }
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("FAIRLEAD_")}
        with (self.folder / f"broker-{broker}.log").open("ab", buffering=0) as log:
            log.write(f"started with {settings}\n".encode())
            return start("broker", "start", environment={**inherited, **settings}, output=log, errors=log)

    def _here(self, broker: int, text: str) -> str:
        """Return a setting with paths and addresses of this machine."""
        for (of, path), folder in self.folders.items():
            if of == broker and (text == path or text.startswith(f"{path}/")):
                return text.replace(path, str(folder), 1)
        text = EVERY_ADDRESS.sub(f"127.0.1.{broker}", text)
        text = HOST.sub(rf"127.0.1.{broker}:\1", text) if "svc" in text else text
        for number in PORTS:
            text = text.replace(f":{number}", f":{self.port(number)}")
        return text

    def _write(self, folder: Path, volume: Manifest) -> None:
        if "secret" in volume:
            found = self.client.get(f"secret/{volume['secret']['secretName']}", self.namespace)
            assert found is not None or volume["secret"].get("optional"), f"there is no Secret of {volume}"
            data = found["data"] if found is not None else {}
            content = {name: base64.b64decode(each) for name, each in data.items()}
        elif "configMap" in volume:
            found = self.client.get(f"configmap/{volume['configMap']['name']}", self.namespace)
            assert found is not None, f"there is no ConfigMap of {volume}"
            content = {name: each.encode() for name, each in found["data"].items()}
        else:
            content = {}
            for source in volume["projected"]["sources"]:
                token = source.get("serviceAccountToken")
                if token is not None:
                    text = self.client.token("main", self.namespace, audience=token.get("audience"))
                    content[token["path"]] = text.encode()
        for name, each in content.items():
            path = folder / name
            if not path.exists() or path.read_bytes() != each:
                new = folder / f".{name}"
                new.write_bytes(each)
                new.replace(path)


def begin_to_follow(brokers: PodBrokers) -> None:
    """Follow the volumes in the background."""
    threading.Thread(target=brokers.follow_volumes, daemon=True).start()


def _issuer_of(token: str) -> str:
    import json

    part = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return str(claims["iss"])
