"""Figures that a scale test measured: printed at the end of the run, for the broker under test."""

from collections.abc import Callable

import pytest

_FIGURES: list[str] = []


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Have a measured figure printed in the summary of the run."""
    from compat_tests.conftest import TARGET

    return lambda text: _FIGURES.append(f"{TARGET}: {text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _FIGURES:
        terminalreporter.section("scale")
        for figure in _FIGURES:
            terminalreporter.write_line(figure)
