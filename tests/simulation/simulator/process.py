"""A process, whose scheduled actions end with it and are delayed while it is paused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.network import STORE

STORE_PATIENCE_SECONDS = 0.6


class Process:
    """The successive processes of one node."""

    def __init__(self, world: Any, number: int) -> None:
        """Create a process that is not running."""
        self.world = world
        self.number = number
        self.life = 0
        """Number of starts and ends so far, by which actions of ended processes are recognised."""
        self.alive = False
        self.paused_until: float | None = None
        self.stalled_until = 0.0
        """Time until which watches deliver nothing."""
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def start(self) -> None:
        """Start a process."""
        assert not self.alive, "one process at a time"
        self.life += 1
        self.alive, self.paused_until = True, None
        self._backlog.clear()

    def kill(self) -> None:
        """End the process at once."""
        self.alive = False
        self.life += 1

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action of this process later."""
        self.world.schedule.after(delay, self.alive_in, self.life, action, *arguments)

    def alive_in(self, life: int, action: Callable[..., None], *arguments: Any) -> None:
        """Run an action if its process is still running."""
        if life == self.life:
            self.receive(action, *arguments)

    def receive(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run the action of a message: never while the process is down, and later while it is paused."""
        if not self.alive:
            return
        if self.paused_until is not None:
            self._backlog.append((action, arguments))
            return
        action(*arguments)

    def pause(self, seconds: float) -> None:
        """Pause for some time, during which everything is delayed and nothing is lost."""
        if self.alive and self.paused_until is None:
            self.paused_until = self.world.now + seconds
            self.world.schedule.after(seconds, self._resume, self.life)

    def resume(self) -> None:
        """Continue a paused process before its time."""
        self._resume(self.life)

    def _resume(self, life: int) -> None:
        if life != self.life or self.paused_until is None:
            return
        self.paused_until = None
        backlog, self._backlog = self._backlog, []
        for action, arguments in backlog:
            self.alive_in(life, action, *arguments)

    def ask_store(
        self, request: Callable[[], Any], answered: Callable[..., None], *more: Any, late: float = 0.0
    ) -> None:
        """Run a request at the store; `answered` gets the result, or None if the outcome is unknown."""
        world, network = self.world, self.world.network
        life, asked = self.life, world.now
        if not network.passes(self.number, STORE):
            world.schedule.after(STORE_PATIENCE_SECONDS, self.alive_in, life, answered, None, *more)
            return
        late += network.delay()
        if late >= STORE_PATIENCE_SECONDS:
            world.schedule.after(STORE_PATIENCE_SECONDS, self.alive_in, life, answered, None, *more)

        def carried_out() -> None:
            left = asked + STORE_PATIENCE_SECONDS - world.now
            result = request() if world.store.available else None
            if left <= 0:
                return
            back = network.delay()
            if result is None or back > left or not network.passes(STORE, self.number):
                world.schedule.after(left, self.alive_in, life, answered, None, *more)
            else:
                world.schedule.after(back, self.alive_in, life, answered, result, *more)

        world.schedule.after(late, carried_out)
