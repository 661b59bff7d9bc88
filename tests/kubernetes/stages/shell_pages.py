"""The commands and manifests of a documentation page, unchanged, and a shell to run them.

Blocks marked `sh` are commands, in the order of the page. An invisible comment `<!-- needs pods -->` on the line before
says that a block waits for programs that really run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chart_tools import ROOT
from go_programs import program

if TYPE_CHECKING:
    from kubernetes_under_test import Kubernetes

BLOCK = re.compile(r"(<!-- needs pods -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    needs_pods: bool


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, or of a part of it."""
    return [Block(found[2], found[3], bool(found[1])) for found in BLOCK.finditer(text)]


def section(page: Path, heading: str) -> str:
    """Return the text under a second-level heading."""
    return page.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]


class Shell:
    """Shell as a reader of a page uses it, in the checkout, with kubectl, `helm` and a separate kubeconfig."""

    def __init__(self, kubernetes: Kubernetes, folder: Path, helm: str = "helm4") -> None:
        """Copy the kubeconfig, which commands may change; the command `helm` is the program `helm`, such as `helm4`."""
        self._kubernetes = kubernetes
        self._kubeconfig = folder / "kubeconfig"
        self._programs = folder / "bin"
        self._programs.mkdir(parents=True)
        shutil.copy(kubernetes.kubeconfig, self._kubeconfig)
        (self._programs / "helm").symlink_to(program(helm))

    def run(self, command: str) -> str:
        """Run a block and return its output; raise `AssertionError` with the whole output when a command fails."""
        environment = self._kubernetes.environment(self._kubeconfig)
        environment["PATH"] = f"{self._programs}:{environment['PATH']}"
        done = subprocess.run(
            [*self._kubernetes.enter, "bash", "-euo", "pipefail", "-c", command],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout
