"""The recipes in docs/recipes/ are tests: they run here, each in a file of its own, as a reader would run them."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "recipes").glob("*.md"))
CLIENTS = {"confluent_kafka", "aiokafka", "kafka"}


def recipes(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_each_recipe_is_a_test_with_each_client() -> None:
    everything = [recipe for page in PAGES for recipe in recipes(page)]
    titles = [title for page in PAGES for title in re.findall(r"^## .*", page.read_text(), re.MULTILINE)]
    assert len(everything) == len(titles) >= 20
    for title, recipe in zip(titles, everything, strict=True):
        assert "def test_" in recipe, title
        assert set(re.findall(r"^from (\w+)", recipe, re.MULTILINE)) >= CLIENTS, title


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipes(pytester: pytest.Pytester, page: Path) -> None:
    found = recipes(page)
    pytester.makepyfile(**{f"test_recipe_{number}": recipe for number, recipe in enumerate(found)})
    # kafka-python warns of its own imports and leaves sockets to the garbage collector: no `-W error` here.
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--durations=3")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= len(found)
