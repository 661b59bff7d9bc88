"""Builds of images and of Go programs report their steps while they run: a step takes up to a quarter of an hour."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

import checkout
import etcd_build

if TYPE_CHECKING:
    from pathlib import Path


def bases() -> Any:
    """Load .ci/image_bases.py as a module."""
    spec = importlib.util.spec_from_file_location("image_bases", checkout.ROOT / ".ci/image_bases.py")
    assert spec is not None, "the file exists"
    assert spec.loader is not None, "a file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module here
    spec.loader.exec_module(module)
    return module


def without_times(lines: list[str]) -> list[str]:
    """Return lines with `N s` instead of the seconds at their ends, which depend on the load of the machine."""
    return [re.sub(r"\b\d+ s$", "N s", line) for line in lines]


def test_a_long_step_says_that_it_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A step is named when it begins and again while it runs; its output and input are complete."""
    end = tmp_path / "end"
    os.mkfifo(end)
    script = ["sh", "-c", f"cat - {end}"]
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(bases().run, script, text="given ", step="download packages", report_seconds=0.01)
        told = ""
        while told.count("download packages") < 3:
            told += capfd.readouterr().err
        end.write_text("found")

    assert step.result() == "given found"
    # A thread of a library may write to the same standard error.
    lines = [line for line in told.splitlines() if line.startswith("download packages")]
    assert without_times(lines[:2]) == ["download packages", "download packages: N s"]


def test_a_compilation_reports_the_packages_that_are_compiled(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation is named when it begins, while it runs and when it ends; a failure shows the compiler's output."""
    monkeypatch.setattr(etcd_build, "REPORT_SECONDS", 0)
    etcd_build.compile_program("kubelet", ["sh", "-c", "echo first >&2; echo second >&2"], tmp_path)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith(("build ", "built "))]
    with pytest.raises(etcd_build.EtcdNotBuilt) as failed:
        etcd_build.compile_program("kubelet", ["sh", "-c", "echo no such package >&2; exit 1"], tmp_path)

    assert without_times(told) == [
        "build kubelet from Go modules",
        "build kubelet: 1 packages compiled after N s",
        "build kubelet: 2 packages compiled after N s",
        "built kubelet in N s",
    ]
    assert "no such package" in str(failed.value)
