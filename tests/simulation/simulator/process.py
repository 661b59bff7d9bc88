"""What it is to be a process: whatever it has begun ends with it, and waits while it stands still."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simulator.network import STORE

if TYPE_CHECKING:
    from simulator.world import World

STORE_PATIENCE_SECONDS = 0.6


class Process:
    """One process after the other, under one broker's number."""

    def __init__(self, world: World, number: int) -> None:
        """Be there, switched off."""
        self.world = world
        self.number = number
        self.life = 0
        """Number of the process."""
        self.alive = False
        self.paused_until: float | None = None
        self.stalled_until = 0.0
        """Until then watches tell nothing."""
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """Let this process do something later."""
        self.world.schedule.after(delay, self.alive_in, self.life, action, *arguments)

    def alive_in(self, life: int, action: Callable[..., None], *arguments: Any) -> None:
        """Do something if the process is still the one that wanted it."""
        if life == self.life:
            self.receive(action, *arguments)

    def receive(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do what a message asks for: nothing while down, later while paused."""
        if not self.alive:
            return
        if self.paused_until is not None:
            self._backlog.append((action, arguments))
            return
        action(*arguments)

    def pause(self, seconds: float) -> None:
        """Stand still: nothing is lost, everything is late."""
        if self.alive and self.paused_until is None:
            self.paused_until = self.world.now + seconds
            self.world.schedule.after(seconds, self._resume, self.life)

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
        """Let the store do something; `answered` gets what it says, or None if nobody knows."""
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
