"""The decisions of `python -m tools.foreign.container_engine`; `make test-image` is its real use."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.foreign import container_engine
from tools.foreign.container_engine import CAP_SYS_ADMIN, addresses, answering, reason_against

ALL = (1 << 41) - 1


def test_root_on_debian_gets_an_engine() -> None:
    assert reason_against(0, "debian", ALL) is None


@pytest.mark.parametrize(
    ("user", "distribution", "capabilities", "told"),
    [
        (1000, "debian", 0, "only root"),
        (0, "fedora", ALL, "not on fedora"),
        (0, "debian", ALL & ~(1 << CAP_SYS_ADMIN), "no leave to mount"),
    ],
)
def test_others_are_told_what_to_do(user: int, distribution: str, capabilities: int, told: str) -> None:
    reason = reason_against(user, distribution, capabilities)
    assert reason is not None
    assert told in reason
    assert "start" in reason
    assert "\n" not in reason


def test_the_named_engine_is_used(tmp_path: Path) -> None:
    named = f"unix://{tmp_path}/docker.sock"
    assert addresses({"DOCKER_HOST": named}) == [named]
    assert answering([named]) is None


def test_check_ends_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert container_engine.main(["--check"]) == 1
    assert capsys.readouterr().err.count("\n") == 1

    assert container_engine.main([sys.executable, "-c", "raise SystemExit('it ran')"]) == 1
    assert "only root" in capsys.readouterr().err


def test_a_commands_output_and_status_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    run = container_engine._run
    assert run([sys.executable, "-c", "raise SystemExit(7)"], os.environ) == 7
    assert run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], os.environ) == 128 + 9
    with subprocess.Popen(
        [sys.executable, "-m", "tools.foreign.container_engine", "--help"], stdout=subprocess.PIPE
    ) as told:
        assert b"docker.io" in told.communicate()[0]
