"""The faults of a cluster: each function begins one fault, waits under load, and ends the fault.

Each function returns whether its fault took effect; for example, killing a follower has no effect if there is no
follower.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from chaos_cluster import ETCD, LEASE_SECONDS, Node, pause
from chaos_run import TOPIC, ChaosRun
from links import Pair

Fault = Callable[[ChaosRun, random.Random], Awaitable[bool]]


async def leader(run: ChaosRun, rng: random.Random) -> Node | None:
    """Return a broker that leads some partition."""
    partitions = await run.cluster.partitions(TOPIC)
    led = [each.leader for each in partitions if each.leader is not None]
    return run.cluster.node(rng.choice(led)) if led else None


async def follower(run: ChaosRun, rng: random.Random) -> Node | None:
    """Return a broker that has a follower of some partition."""
    found = [
        number
        for each in await run.cluster.partitions(TOPIC)
        for number in each.replicas
        if number != each.leader
    ]
    return run.cluster.node(rng.choice(found)) if found else None


async def controller(run: ChaosRun, _rng: random.Random) -> Node | None:
    """Return the broker that is the controller."""
    number = (await run.cluster.metadata(TOPIC)).controller
    return None if number is None else run.cluster.node(number)


Role = Callable[[ChaosRun, random.Random], Awaitable[Node | None]]


def _killed(role: Role) -> Fault:
    async def fault(run: ChaosRun, rng: random.Random) -> bool:
        node = await role(run, rng)
        if node is None:
            return False
        await run.cluster.kill(node)
        await run.work(rng.uniform(0.2, 2.5 * LEASE_SECONDS))
        await run.cluster.start(node)
        return True

    return fault


def _paused(role: Role) -> Fault:
    async def fault(run: ChaosRun, rng: random.Random) -> bool:
        node = await role(run, rng)
        if node is None:
            return False
        run.cluster.pause(node)
        await run.work(rng.choice((0.4, 1.0, 1.5, 3.0)) * LEASE_SECONDS)
        run.cluster.resume()
        return True

    return fault


def _restarted(role: Role) -> Fault:
    async def fault(run: ChaosRun, rng: random.Random) -> bool:
        node = await role(run, rng)
        if node is None:
            return False
        codes = await run.cluster.stop(node)
        assert codes == [0], f"{node.name} ended with {codes} after a graceful stop"
        await run.work(rng.uniform(0.1, 2.0))
        await run.cluster.start(node)
        return True

    return fault


def both_ways(one: str, others: Iterable[str]) -> set[Pair]:
    """Return the pairs of a node and each other node, in both directions."""
    return {pair for other in others for pair in ((one, other), (other, one))}


def _parted(pairs: Callable[[ChaosRun, Node, random.Random], set[Pair]]) -> Fault:
    async def fault(run: ChaosRun, rng: random.Random) -> bool:
        node = await leader(run, rng)
        if node is None:
            return False
        parted = pairs(run, node, rng)
        held = run.cluster.links.held_bytes
        if rng.random() < 0.5:
            run.cluster.links.block(parted)
        else:
            run.cluster.links.cut(parted)
            held = -1
        await run.work(rng.choice((0.5, 1.5, 3.0)) * LEASE_SECONDS)
        effective = run.cluster.links.held_bytes > held
        run.cluster.links.mend(lose_held=rng.random() < 0.5)
        return effective

    return fault


def _from_brokers(run: ChaosRun, node: Node, _rng: random.Random) -> set[Pair]:
    return both_ways(node.name, (each.name for each in run.cluster.nodes if each is not node))


def _from_etcd(_run: ChaosRun, node: Node, _rng: random.Random) -> set[Pair]:
    return both_ways(node.name, [ETCD])


def _from_all(run: ChaosRun, node: Node, rng: random.Random) -> set[Pair]:
    return _from_brokers(run, node, rng) | _from_etcd(run, node, rng)


def _one_way(run: ChaosRun, node: Node, rng: random.Random) -> set[Pair]:
    pairs = _from_brokers(run, node, rng)
    outward = rng.random() < 0.5
    return {pair for pair in pairs if (pair[0] == node.name) is outward}


async def kill_all(run: ChaosRun, rng: random.Random) -> bool:
    """Kill all brokers at once, and start them again in a random order."""
    nodes = list(run.cluster.nodes)
    await run.cluster.kill(*nodes)
    await run.work(rng.uniform(0.1, 1.5 * LEASE_SECONDS))
    rng.shuffle(nodes)
    await run.cluster.start(*nodes)
    return True


async def roll(run: ChaosRun, rng: random.Random) -> bool:
    """Stop each broker gracefully and start it again; continue with the next broker when all replicas are in sync."""
    for node in rng.sample(run.cluster.nodes, len(run.cluster.nodes)):
        assert await run.cluster.stop(node) == [0]
        await run.cluster.start(node)
        await run.cluster.wait_for_partitions(TOPIC, lambda each: set(each.isr) == set(each.replicas))
        await run.work(0.2)
    return True


async def etcd_killed(run: ChaosRun, rng: random.Random) -> bool:
    """Kill a member of etcd and start it again."""
    if run.cluster.etcd is None:
        return False
    member = rng.choice(run.cluster.etcd.members)
    member.kill()
    await run.work(rng.choice((0.3, 1.0, 2.0)) * LEASE_SECONDS)
    member.start()
    await run.cluster.etcd.wait_until_ready()
    return True


async def etcd_paused(run: ChaosRun, rng: random.Random) -> bool:
    """Pause a member of etcd."""
    if run.cluster.etcd is None:
        return False
    member = rng.choice(run.cluster.etcd.members)
    member.pause()
    await run.work(rng.choice((0.3, 1.0, 2.0)) * LEASE_SECONDS)
    member.resume()
    return True


async def slow_network(run: ChaosRun, rng: random.Random) -> bool:
    """Delay all traffic in both directions."""
    run.cluster.links.delay_seconds = rng.choice((0.02, 0.1))
    await run.work(2 * LEASE_SECONDS)
    run.cluster.links.delay_seconds = 0.0
    return True


async def nothing(run: ChaosRun, _rng: random.Random) -> bool:
    """Wait without a fault, so that the cluster must recover from the earlier faults."""
    await run.work(LEASE_SECONDS)
    return True


FAULTS: Final[dict[str, Fault]] = {
    "kill-leader": _killed(leader),
    "kill-follower": _killed(follower),
    "kill-controller": _killed(controller),
    "kill-all": kill_all,
    "pause-leader": _paused(leader),
    "pause-follower": _paused(follower),
    "pause-controller": _paused(controller),
    "restart-leader": _restarted(leader),
    "restart-controller": _restarted(controller),
    "roll": roll,
    "part-from-brokers": _parted(_from_brokers),
    "part-from-etcd": _parted(_from_etcd),
    "part-from-all": _parted(_from_all),
    "part-one-way": _parted(_one_way),
    "kill-etcd": etcd_killed,
    "pause-etcd": etcd_paused,
    "slow-network": slow_network,
    "nothing": nothing,
}
ALONE: Final = ("kill-all", "pause-leader", "restart-leader", "nothing")
"""The faults of a single broker without etcd."""


async def inject(run: ChaosRun, rng: random.Random, names: Iterable[str], seconds: float) -> None:
    """Inject faults for `seconds`, with no fault in about a quarter of the steps; count the faults that took effect."""
    names = sorted(names)
    until = run.history.now + seconds
    while run.history.now < until:
        name = "nothing" if rng.random() < 0.25 else rng.choice(names)
        run.history.note("note", "ok", fault=f"{name} begins")
        if await FAULTS[name](run, rng) and name != "nothing":
            run.count(name)
        await pause(0)
