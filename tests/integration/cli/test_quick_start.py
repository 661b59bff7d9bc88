"""The quick start of the documentation, word for word, against a broker that `fairlead dev up` started."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "quick-start.md"
BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_HERE = ("make setup", "source ", "fairlead dev up")


@pytest.mark.slow
def test_the_quick_start_works_word_for_word(
    dev_broker: str, dev_ops: str, shell_environment: dict[str, str], tmp_path: Path
) -> None:
    """Every command of the page succeeds and prints the output that the page shows."""
    page = PAGE.read_text(encoding="utf-8")
    page = page.replace("http://127.0.0.1:9520", dev_broker).replace("http://127.0.0.1:9522", dev_ops)
    answers: list[str] = []
    lags: list[str] = []
    shown = 0

    for kind, text in BLOCK.findall(page):
        if kind == "text":
            assert answers[-1] == text
            shown += 1
            continue
        if kind == "python":
            (tmp_path / "readers.py").write_text(text, encoding="utf-8")
            continue
        commands = [line for line in text.splitlines() if not line.startswith(NOT_HERE)]
        answers = []
        for command in commands:
            done = subprocess.run(
                command,
                shell=True,
                env=shell_environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (command, done.stderr)
            answers.append(done.stdout)
        lags += [answer for answer in answers if "LAG" in answer]

    assert shown == 4
    [lag] = lags
    assert lag.splitlines()[-1].split()[:5] == ["test", "0", "3", "4", "1"]


def test_curl_reads_back_its_record(dev_broker: str, shell_environment: dict[str, str]) -> None:
    """A record that curl wrote as JSON is read back as JSON."""
    script = f"""
    fairlead topic create greetings
    curl -sf -H 'Content-Type: application/json' -d '{{"records": [{{"value": "from curl"}}]}}' \\
        {dev_broker}/v1/topics/greetings/records > /dev/null
    curl -sf -H 'Accept: application/json' '{dev_broker}/v1/topics/greetings/partitions/0/records?offset=0'
    """

    done = subprocess.run(
        ["bash", "-ec", script], env=shell_environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert '"value":"from curl"' in done.stdout.replace(": ", ":")
