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


ONE_CLIENT = """
NAMES = ("confluent_kafka", "aiokafka", "kafka_python")

def pytest_collection_modifyitems(config, items):
    def is_chosen(item):
        number = int(item.path.stem.rpartition("_")[2])
        named = [name for name in NAMES if name in item.name]
        return not named or NAMES[number % len(NAMES)] in named

    left_out = [item for item in items if not is_chosen(item)]
    items[:] = [item for item in items if is_chosen(item)]
    config.hook.pytest_deselected(items=left_out)
"""
"""The clients take turns: the first recipe of a page is run with the first of them."""


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("clients", ["one client", pytest.param("each client", marks=pytest.mark.full)])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_recipes(pytester: pytest.Pytester, page: Path, clients: str) -> None:
    found = recipes(page)
    pytester.makepyfile(**{f"test_recipe_{number}": recipe for number, recipe in enumerate(found)})
    if clients == "one client":
        pytester.makeconftest(ONE_CLIENT)
    # kafka-python warns of its own imports and leaves sockets to the garbage collector: no `-W error` here.
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--durations=3", "-v")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] >= len(found)
    ran = set(re.findall(r"test_recipe_(\d+)\.py::\S+ PASSED", result.stdout.str()))
    assert ran == {str(number) for number in range(len(found))}, "each recipe"
