"""What the documents say about themselves and the code is true."""

import re
from pathlib import Path

import pytest

from tools import config_reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("compat_tests/**/README.md")])


def test_the_configuration_page_is_current() -> None:
    assert config_reference.TARGET.read_text() == config_reference.reference(), "run python -m tools.config_reference"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`((?:wire|storage|controller|broker|barnabas|tools|compat_tests)/[\w/.]+?)`", text):
        assert (ROOT / path).exists(), f"ARCHITECTURE.md names {path}"
