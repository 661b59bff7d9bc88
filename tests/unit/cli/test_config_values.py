"""Settings from `-c key=value` and `--unset key`."""

from __future__ import annotations

import pytest
import typer

from fairlead.cli.config_values import changes


def test_both_options_become_one_patch() -> None:
    """A value may contain an equals sign or be empty, and the value of an unset key is None."""
    patch = changes(["retention.ms=5", "note=a=b", "empty="], ["flush.ms"])

    assert patch == {"retention.ms": "5", "note": "a=b", "empty": "", "flush.ms": None}
    assert changes(None) == {}


@pytest.mark.parametrize(
    ("config", "unset"), [(["retention.ms"], None), (["=5"], None), (["flush.ms=5"], ["flush.ms"])]
)
def test_a_wrong_option_ends_the_command(
    config: list[str], unset: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid option ends the command with the exit code for usage errors, and the message describes the error."""
    with pytest.raises(typer.Exit) as ended:
        changes(config, unset)

    assert ended.value.exit_code == 2
    assert "error:" in capsys.readouterr().err
