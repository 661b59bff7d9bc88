"""The wheels of the native module of the Kafka listener, which `make release` builds for other machines."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import checkout
from install_kit import UV, clean_variables, new_environment, run

# Compiling for four platforms takes a minute and a half without load.
pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]

PROGRAM = checkout.ROOT / ".ci/native_wheels.py"
MACHINES = {"x86_64": 62, "aarch64": 183}
"""Numbers of machines in the header of an ELF file."""
LIBRARIES = ("manylinux_2_17", "musllinux_1_2")
MACHINE_AT = 18
GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")
GLIBC_MAX = (2, 17)
TRANSLATE = """
import fairlead_kafka_records as records
# A record of 7 bytes: attributes, time and offset differences, no key, the value "x", no headers.
packed, places, nulls, times = records.decode(bytes([14, 0, 0, 0, 1, 2, 120, 0]), 1, 5, 0, 0)
print(b"x" in packed, nulls[0], times)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Build all wheels; return their folder and the lines that the program printed."""
    folder = tmp_path_factory.mktemp("wheels")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, check=True
    )
    return folder, done.stdout.splitlines()


@pytest.fixture
def program() -> ModuleType:
    """Return the program that builds the wheels, as a module."""
    spec = importlib.util.spec_from_file_location("native_wheels_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_wheel_is_for_its_machine_and_c_library(built: tuple[Path, list[str]]) -> None:
    """Four wheels have code for x86-64 and arm64, and need at most glibc 2.17, or musl."""
    folder, lines = built
    found = {}
    for wheel in folder.glob("*.whl"):
        _, _, interpreter, abi, platform = wheel.stem.split("-")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [each for each in archive.namelist() if each.endswith(".so")]
            code = archive.read(name)
        glibc = max(((int(a), int(b)) for a, b in GLIBC.findall(code)), default=None)
        found[platform] = (
            interpreter,
            abi,
            int.from_bytes(code[MACHINE_AT : MACHINE_AT + 2], "little"),
            glibc,
        )

    assert sorted(lines) == sorted(f"{platform}: built" for platform in found)
    assert sorted(found) == sorted(f"{library}_{machine}" for library in LIBRARIES for machine in MACHINES)
    for platform, (interpreter, abi, machine, glibc) in found.items():
        assert (interpreter, abi) == ("cp311", "abi3")
        assert platform.endswith(next(name for name, number in MACHINES.items() if number == machine))
        assert (glibc is not None and glibc <= GLIBC_MAX) if platform.startswith("many") else glibc is None


def test_a_machine_without_a_compiler_installs_a_wheel(built: tuple[Path, list[str]], tmp_path: Path) -> None:
    """The wheel is installed without a compiler or an index, and translates a record."""
    folder, _ = built
    programs = new_environment(tmp_path)
    installed = subprocess.run(
        [UV, "pip", "install", "--python", programs / "python", "--no-index", "--no-build", "--find-links",
         folder, "fairlead-kafka-records"],
        env={**clean_variables(), "PATH": str(programs)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    translated = run(programs / "python", "-c", TRANSLATE, cwd=tmp_path)

    assert installed.returncode == 0, installed.stderr
    assert translated.stdout.split() == ["True", "1", "(5000,", "5000)"], translated.stderr


def test_a_platform_without_tools_is_reported(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A platform that the compiler does not know is named with the reason, and the other wheels are still built."""
    targets = {"manylinux_2_17_x86_64": program.TARGETS["manylinux_2_17_x86_64"], "none": "no-such-machine"}
    monkeypatch.setattr(program, "TARGETS", targets)
    code = program.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert lines[0] == "manylinux_2_17_x86_64: built"
    assert lines[1].startswith("none: not built: ")
    assert len(list(tmp_path.glob("*.whl"))) == 1
