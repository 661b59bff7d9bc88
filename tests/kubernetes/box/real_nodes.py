"""Real nodes in a box: containerd, runc and kubelet for each node, one kube-proxy and one CoreDNS for all nodes.

The nodes share the network of the box. A node is a bridge (10.88.N.1) with its pods (10.88.N.0/24), and the kernel
routes between the bridges. Network policies are enforced by kube-router, only in a box with one real node and on
request: an instance of kube-router enforces the policies of the pods on its node and removes the rules of all other
pods, so several instances in one network would remove each other's rules.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import control_plane
from authority import PKI, Authority
from daemons import BIN, STATE, Daemon, run
from fake_nodes import zone
from furnishing import NAMES_ADDRESS, SERVICE_RANGE

VOLUME_KEEPER = Path(__file__).with_name("volume_keeper.py")
START_SECONDS = 60.0
CLUSTER_DOMAIN = "cluster.local"
POLICIES_CHAIN = "KUBE-ROUTER-FORWARD"
"""Chain of kube-router's rules for packets between pods."""
# A box gets the weight of twenty processes, because each process outside the box competes with all its pods together.
BOX_SHARES = str(20 * 1024)
# By default, kubelets evict pods below 10 % of free disk or even earlier, and a developer's machine may have less.
EVICTION = {
    "memory.available": "50Mi",
    "nodefs.available": "1%",
    "imagefs.available": "1%",
    "nodefs.inodesFree": "1%",
}


def start(authority: Authority, numbers: list[int], cgroup: str, pause_image: Path) -> None:
    """Start the shared parts of all nodes, and the nodes with these numbers, which become Ready later."""
    resolver = f"nameserver {NAMES_ADDRESS}\nsearch svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\noptions ndots:5\n"
    (STATE / "resolv.conf").write_text(resolver)
    # Resolver that pods use for names outside the cluster.
    (STATE / "node-resolv.conf").write_text(f"nameserver {NAMES_ADDRESS}\n")
    _start_names()
    nodes = [RealNode(number, cgroup) for number in numbers]
    for node in nodes:
        node.start_containerd()
    for node in nodes:
        node.wait_for_containerd()
        node.import_image(pause_image)
        node.start_kubelet(authority)
    _start_proxy(nodes[0])
    Daemon("volume-keeper").start([sys.executable, VOLUME_KEEPER])


def enforce_policies(node: str) -> None:
    """Start kube-router as the enforcer of network policies for the pods of a node; wait until its rules exist."""
    # Without this setting, rules would not see packets between pods on the same bridge.
    Path("/proc/sys/net/bridge/bridge-nf-call-iptables").write_text("1")
    enforcer = Daemon("kube-router")
    enforcer.start(
        [
            BIN / "kube-router",
            f"--kubeconfig={STATE}/admin.kubeconfig",
            f"--hostname-override={node}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--v=1",
        ]
    )

    def has_rules() -> bool:
        listed = subprocess.run(["iptables", "-S", POLICIES_CHAIN], capture_output=True, check=False)
        return listed.returncode == 0

    enforcer.wait_until(has_rules, START_SECONDS)


class RealNode:
    """One node, identified by its number; numbers begin at 1."""

    def __init__(self, number: int, cgroup: str) -> None:
        """Set the number of the node, without starting the node."""
        self.name = f"node-{number}"
        self.address = f"10.88.{number}.1"
        self.subnet = f"10.88.{number}.0/24"
        self.zone = zone(number)
        self._cgroup = f"{cgroup}/{self.name}"
        self._home = STATE / self.name
        # The path of the socket is absolute, because ctr and kubelet mistake a relative path for another scheme, and
        # short, because a socket's path is limited to 107 bytes.
        self._run = Path("/run", self.name)
        self._socket = self._run / "containerd.sock"

    def start_containerd(self) -> None:
        """Create the bridge and start containerd."""
        self._home.mkdir()
        self._run.mkdir()
        bridge = f"br-{self.name}"
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.address}/24", "dev", bridge)
        run("ip", "link", "set", bridge, "up")
        (self._home / "cni").mkdir()
        control_plane.write(f"{self.name}/cni/bridge.conflist", self._network(bridge))
        (self._home / "containerd.toml").write_text(self._containerd_settings())
        Daemon(f"{self.name}-containerd").start(
            [BIN / "containerd", "--config", self._home / "containerd.toml"]
        )

    def wait_for_containerd(self) -> None:
        """Wait until containerd answers; raise `NotReady` if it does not answer in time."""

        def answers() -> bool:
            return subprocess.run(self._ctr("version"), capture_output=True, check=False).returncode == 0

        Daemon(f"{self.name}-containerd").wait_until(answers, START_SECONDS)

    def import_image(self, archive: Path) -> None:
        """Load an OCI archive."""
        run(*self._ctr("images", "import", "--local", str(archive)))

    def start_kubelet(self, authority: Authority) -> None:
        """Start the kubelet, which registers the node."""
        authority.certify(
            self.name, f"system:node:{self.name}", "system:nodes", hosts=(self.name, self.address)
        )
        self._make_cgroup()
        settings = control_plane.write(f"{self.name}/kubelet.json", self._kubelet_settings())
        labels = f"type=real,topology.kubernetes.io/zone={self.zone}"
        Daemon(f"{self.name}-kubelet").start(
            [
                BIN / "kubelet",
                f"--config={settings}",
                f"--kubeconfig={authority.kubeconfig(self.name, control_plane.SERVER)}",
                f"--root-dir={self._home}/kubelet",
                f"--cert-dir={self._home}/certificates",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--node-labels={labels}",
            ]
        )

    def _ctr(self, *words: str) -> list[str]:
        return [str(BIN / "ctr"), "--address", str(self._socket), "--namespace", "k8s.io", *words]

    def _network(self, bridge: str) -> dict[str, Any]:
        addresses = {
            "type": "host-local",
            "dataDir": f"{self._run}/addresses",
            "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": self.subnet}]],
        }
        plugin = {
            "type": "bridge",
            "bridge": bridge,
            "isGateway": True,
            # A pod can reach itself through its service.
            "hairpinMode": True,
            "ipam": addresses,
        }
        return {"cniVersion": "1.0.0", "name": self.name, "plugins": [plugin]}

    def _containerd_settings(self) -> str:
        # Images are in memory, because a disk takes a minute to write their thousands of files and another to remove
        # them. restrict_oom_score_adj: a process may not lower its oom_score_adj below its parent's without a right
        # that containers of a build machine lack, and runc fails without a message.
        return f"""\
version = 3
root = "{self._run}/images"
state = "{self._run}/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{self._socket}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{BIN}"]
  conf_dir = "{self._home}/cni"
  use_internal_loopback = true
"""

    def _kubelet_settings(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": self.address,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            # The kubelet checks the machine's settings and never writes them, because the box has the wanted values.
            "protectKernelDefaults": True,
            "makeIPTablesUtilChains": False,
            "failSwapOn": False,
            "authentication": {
                "anonymous": {"enabled": False},
                "x509": {"clientCAFile": f"{PKI}/ca.crt"},
            },
            "tlsCertFile": f"{PKI}/{self.name}.crt",
            "tlsPrivateKeyFile": f"{PKI}/{self.name}.key",
            "clusterDomain": CLUSTER_DOMAIN,
            "clusterDNS": [NAMES_ADDRESS],
            "resolvConf": f"{STATE}/node-resolv.conf",
            "podLogsDir": f"{self._home}/pod-logs",
            "volumePluginDir": f"{self._home}/volume-plugins",
            "evictionHard": EVICTION,
            "nodeStatusUpdateFrequency": "5s",
            "serializeImagePulls": False,
        }

    def _make_cgroup(self) -> None:
        """Create the kubelet's root cgroup in every hierarchy, because a new cpuset is empty and could run nothing.

        Without a higher weight, all pods of a box together would get as much time as one process of a busy machine.
        """
        for hierarchy in {path.parent.resolve() for path in Path("/sys/fs/cgroup").glob("*/cgroup.procs")}:
            folder = hierarchy
            for part in self._cgroup.split("/"):
                folder /= part
                folder.mkdir(exist_ok=True)
                for file in ("cpuset.cpus", "cpuset.mems"):
                    if (folder / file).exists():
                        (folder / file).write_text((folder.parent / file).read_text())
            if (hierarchy / "cpu.shares").exists():
                (hierarchy / self._cgroup.split("/", maxsplit=1)[0] / "cpu.shares").write_text(BOX_SHARES)


def _start_proxy(node: RealNode) -> None:
    settings = control_plane.write(
        "kube-proxy.json",
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": f"{STATE}/admin.kubeconfig"},
            "clusterCIDR": "10.88.0.0/16",
            "bindAddress": node.address,
            "hostnameOverride": node.name,
            # The addresses of all nodes; by default only the first node would have node ports.
            "nodePortAddresses": ["10.88.0.0/16"],
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            # One kube-proxy serves all nodes and treats only pods of the first node as local. Without
            # masquerading, pods of other nodes that reach themselves through a Service would answer to
            # themselves.
            "nftables": {"minSyncPeriod": "100ms", "masqueradeAll": True},
            # 0 leaves the limits of connection tracking unchanged, which a network namespace cannot set.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        },
    )
    Daemon("kube-proxy").start([BIN / "kube-proxy", f"--config={settings}"])


def _start_names() -> None:
    """Start CoreDNS, which answers immediately that names outside the cluster do not exist."""
    (STATE / "Corefile").write_text(f"""\
{CLUSTER_DOMAIN} in-addr.arpa {{
    bind {NAMES_ADDRESS}
    kubernetes {{
        kubeconfig {STATE}/admin.kubeconfig
        ttl 1
    }}
}}
. {{
    bind {NAMES_ADDRESS}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
""")
    Daemon("coredns").start([BIN / "coredns", "-conf", STATE / "Corefile"])
