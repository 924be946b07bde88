"""The statements of the documents about themselves and the code are true."""

import ast
import fnmatch
import re
from pathlib import Path

import pytest

from barnabas.controller import znodes
from tools.markdown import WIDTH
from tools.references import authorization, command_line, configuration, metrics

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("wire", "storage", "controller", "broker")
LINKS = tuple(f"barnabas/{package}/" for package in PACKAGES)
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "compat_tests/**/README.md", "tests/*.md")
    for path in ROOT.glob(pattern)
)


def test_the_configuration_page_is_current() -> None:
    assert configuration.TARGET.read_text() == configuration.reference(), "run make docs"


def test_the_page_of_the_command_line_is_current() -> None:
    assert command_line.TARGET.read_text() == command_line.reference(), "run make docs"


def test_the_metrics_page_is_current() -> None:
    assert metrics.TARGET.read_text() == metrics.reference(), "run make docs"


def test_the_page_of_authorization_is_current() -> None:
    assert authorization.TARGET.read_text() == authorization.reference(), "run make docs"


def test_each_znode_that_means_something_is_told_of() -> None:
    """Those of `PERSISTENT_PATHS` that nobody reads or writes stay empty, as the page says."""
    page = (DOCS / "znodes.md").read_text()
    paths = {value for name, value in vars(znodes).items() if name.isupper() and str(value).startswith("/")}
    assert len(paths) >= 10
    assert sorted(path for path in paths if f"`{path}" not in page) == []


def test_the_docs_agree_on_the_number_of_compared_requests() -> None:
    page = (DOCS / "compatibility.md").read_text()
    [total] = re.findall(r"^([\d,]+) distinct requests were compared", page, re.MULTILINE)
    by_api = re.findall(r"^\| \d+ \|(?:[^|]*\|){3} (\d+) \|", page, re.MULTILINE)
    assert f"{sum(map(int, by_api)):,}" == total
    for name in ("README.md", "CHANGELOG.md"):
        assert re.findall(r"([\d,]+) requests", (ROOT / name).read_text()) == [total], name


ATTACKS = re.findall(r"^- \*\*A(\d+)\.\*\*", (DOCS / "internals/attacks.md").read_text(), re.MULTILINE)
"""The numbers of the attacks on their page, one for each of their figures."""


class Attacked:
    """Which listeners each test of tests/abuse attacks, by its mark or else that of its file."""

    def __init__(self, folder: Path) -> None:
        self.by_test: dict[str, set[str]] = {}
        for path in folder.glob("test_*.py"):
            tree = ast.parse(path.read_text())
            marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_named(node, "pytestmark")]
            of_file = set().union(*map(_listeners, marks))
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    own = set().union(*map(_listeners, node.decorator_list))
                    self.by_test[f"{path.relative_to(ROOT)}::{node.name}"] = own or of_file

    def by(self, name: str) -> set[str]:
        """The listeners that an attack (A1) or a test (FILE::NAME) is against."""
        test = re.compile(rf"test_a{name[1:]}_" if name.startswith("A") else "(?!)")
        return set().union(
            *(found for each, found in self.by_test.items() if each == name or test.match(each.partition("::")[2]))
        )


def _is_named(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _listeners(marks: ast.expr) -> set[str]:
    """The names of listeners in `pytest.mark.listener(NAME, ...)`, anywhere in an expression."""
    calls = (node for node in ast.walk(marks) if isinstance(node, ast.Call))
    return {
        str(argument.value)
        for call in calls
        if ast.unparse(call.func) == "pytest.mark.listener"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


ATTACKED = Attacked(ROOT / "tests/abuse")
CITED = r"(?:A\d+|`tests/[\w/]+\.py(?:::\w+)?`)"


def test_attacks_are_known_by_their_listeners() -> None:
    """A mark of a test counts instead of that of its file; an attack has those of all its tests."""
    assert ATTACKED.by("A4") == {"clients"}
    assert ATTACKED.by("A32") == {"clients", "http"}
    assert ATTACKED.by("A39") == {"control", "http"}
    assert ATTACKED.by("A47") == set(NAMES)
    assert ATTACKED.by("tests/abuse/test_handshakes.py::test_handshakes_have_a_deadline") == {"control", "zookeeper"}
    assert ATTACKED.by("A0") == ATTACKED.by("tests/abuse/test_handshakes.py") == set()
    assert not is_tried("`tests/test_docs.py::test_of_nothing`")
    assert not is_tried("A0")


def is_tried(name: str) -> bool:
    """Whether an attack has its figures and a test, or a file of tests, or a test in it, is there."""
    if name.startswith("A"):
        return name[1:] in ATTACKS and any(f"::test_a{name[1:]}_" in test for test in ATTACKED.by_test)
    path, _, test = name.strip("`").partition("::")
    if not (ROOT / path).is_file():
        return False
    return not test or re.search(rf"^(?:async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE) is not None


def limits(page: Path) -> str:
    """A page below docs/limits.md, without line breaks in items."""
    return re.sub(r"\n +", " ", page.read_text())


LISTENERS_PAGE = DOCS / "limits/listeners.md"
LIMITS = sorted(set((DOCS / "limits").glob("*.md")) - {LISTENERS_PAGE})
"""The pages of all other limits."""


def test_each_number_of_an_attack_means_one_thing() -> None:
    """One file tries it, and its page has the figures, in order."""
    files: dict[int, set[str]] = {}
    for path in (ROOT / "tests/abuse").glob("test_*.py"):
        for number in re.findall(r"^def test_a(\d+)_", path.read_text(), re.MULTILINE):
            files.setdefault(int(number), set()).add(path.name)
    assert {number: names for number, names in files.items() if len(names) > 1} == {}
    numbers = [int(number) for number in ATTACKS]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(files)


def test_each_limit_is_tried() -> None:
    """By an attack, or by a test that is there."""
    of_page = {page: re.findall(r"^ *- .*$", limits(page), re.MULTILINE) for page in LIMITS}
    assert all(of_page.values())
    bounded = [limit for found in of_page.values() for limit in found]
    assert len(bounded) > 80
    for limit in bounded:
        tried_by = re.search(r"\(([^()]*)\)\.$", limit)
        assert limit.startswith("- **"), limit
        assert tried_by, limit
        for name in tried_by[1].split(", "):
            assert is_tried(name), limit


LISTENERS = {
    "broker/network/socket_server.py": 2,  # for clients, and for brokers
    "broker/http/server.py": 1,
    "barnabas/testing/control/server.py": 1,
    "controller/coordination/zookeeper_server/server.py": 1,
    "barnabas/testing/brokers/kept_network.py": 0,  # hands on what it is asked for
}
"""The files that listen, and the number of headings in `docs/limits/listeners.md` for each."""

NAMES = ("clients", "brokers", "http", "control", "zookeeper")
"""The names of the listeners in marks, in the order of the headings."""
KINDS = 7
"""The number of kinds of limits that each listener has. One has more: what clients store has no other page."""


def test_each_listener_has_its_bounds_and_each_of_them_is_tried() -> None:
    """Of each kind one, or the reason why there is none; each by an attack on this listener, and not on another."""
    listening = {
        str(path.relative_to(ROOT))
        for package in (*PACKAGES, "barnabas/testing")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"bound\.listen\(", path.read_text())
    }
    assert listening == set(LISTENERS)
    headings = limits(LISTENERS_PAGE).split("\n## ")[1:]
    assert len(headings) == sum(LISTENERS.values())
    kinds = [re.findall(r"^- ([\w -]+): ", heading, re.MULTILINE) for heading in headings]
    assert len(kinds[0]) == KINDS
    assert all(each[:KINDS] == kinds[0] for each in kinds)
    for name, heading in zip(NAMES, headings, strict=True):
        listener, *bounds = re.split(r"\n+- ", heading)
        for bound in bounds:
            tried_by = [each.strip("`") for each in re.findall(CITED, bound)]
            assert all(map(is_tried, tried_by)), f"{listener}: {bound}"
            assert all("::" in each or each.startswith("A") for each in tried_by), f"{listener}: which test? {bound}"
            attacks = [each for each in tried_by if each.startswith(("A", "tests/abuse/"))]
            assert attacks, f"{listener}: nothing attacks {bound}"
            others = [each for each in attacks if name not in ATTACKED.by(each)]
            assert others == [], f"{listener}: attacks on another listener: {bound}"
            assert not re.search(r": none[^:]*$", bound), f"{listener}: no reason for {bound}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_is_wider_than_the_code(page: Path) -> None:
    wide = [line for line in page.read_text().splitlines() if len(line) > WIDTH and not line.startswith("http")]
    assert wide == [], "wrap paragraphs, and make wide tables lists"


def links(page: Path) -> list[tuple[str, str]]:
    """Relative links, each as path (empty within the page) and heading (may be empty)."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    return [(path, heading) for path, heading in found if "://" not in path]


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and Python-Markdown make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, heading in links(page):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not heading or heading in headings(target), f"{page.name} links to {path}#{heading}"


@pytest.mark.parametrize("page", sorted(DOCS.glob("**/*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_of_the_site_stay_in_it(page: Path) -> None:
    for path, _ in links(page):
        target = (page.parent / path).resolve()
        assert target.is_file() or not path, f"{page.name} links to {path}, which is no page"
        assert target.is_relative_to(DOCS), f"{page.name} links to {path}, which the built site does not have"


def test_every_page_is_on_the_first_page_and_in_the_navigation() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}
    assert {path for path, _ in links(DOCS / "index.md")} == pages - {"index.md"}
    assert set(re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text())) == pages


HEADS = sorted(page for page in DOCS.glob("**/*.md") if page.with_suffix("").is_dir())


@pytest.mark.parametrize("head", HEADS, ids=lambda page: str(page.relative_to(DOCS)))
def test_the_head_of_a_folder_leads_to_all_its_pages(head: Path) -> None:
    pages = {str(page.relative_to(head.parent)) for page in head.with_suffix("").glob("*.md")}
    assert sorted(pages - {path for path, _ in links(head)}) == []


def rooms() -> list[Path]:
    """The folders with Python files, except tests and the targets of links."""
    folders = (*PACKAGES, "barnabas", "spark_examples", "benchmarks", "tools")
    files = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    found = {path.parent for path in files if not str(path.relative_to(ROOT)).startswith(LINKS)}
    return sorted(found - {ROOT / "tools/gate/without_uvloop"})  # a stand-in for a package


def test_the_architecture_is_a_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.encode()) <= 15 * 1024
    for room in rooms():
        path, parent = str(room.relative_to(ROOT)), str(room.parent.relative_to(ROOT))
        assert f"`{path}/`" in text or (f"`{parent}/`" in text and f"`{room.name}/`" in text), f"it lacks {path}/"


def test_the_architecture_has_a_row_for_every_folder_of_tests() -> None:
    """Tests are in the same rooms as what they test; whatever else is below their folder belongs to one thing."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for folder in sorted({path.parent for path in (ROOT / "tests").rglob("*") if path.suffix not in ("", ".pyc")}):
        path = str(folder.relative_to(ROOT))
        is_room = any((ROOT / above / path.partition("/")[2]).is_dir() for above in ("", "barnabas", "tools"))
        is_told_by_name = folder.name.startswith(("golden", "scenarios"))
        assert is_room or is_told_by_name or f"{path}/" in text, f"ARCHITECTURE.md lacks {path}"


@pytest.mark.parametrize("room", rooms(), ids=lambda room: str(room.relative_to(ROOT)))
def test_the_head_of_a_room_names_its_files(room: Path) -> None:
    """In the docstring of its `__init__.py`, but where a folder has a file for each API."""
    if str(room.relative_to(ROOT)) in ("broker/handlers", "wire/messages"):
        return
    head = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    files = {file.name for file in room.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert sorted(name for name in files if f"{name}`" not in head) == []
    assert [name for name in re.findall(r"`(\w+\.py)`", head) if name not in files | {"__main__.py"}] == []


def test_files_that_the_architecture_names_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`((?:wire|storage|controller|broker|barnabas|tools|compat_tests)/[\w/.]+?)`", text):
        assert (ROOT / path).exists(), f"ARCHITECTURE.md names {path}"


def test_each_file_that_waits_is_named_in_decision_10() -> None:
    """And each name there is of a file or folder that there is, of what waits or runs in a thread."""
    page = (DOCS / "decisions/0010-stale-across-await.md").read_text()
    named = [pattern for item in re.findall(r"^- (`.*?):$", page, re.MULTILINE | re.DOTALL) for pattern in _paths(item)]
    files = [str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    waiting = {path for path in files if re.search(r"\bawait |\basync (with|for) ", (ROOT / path).read_text())}
    elsewhere = ("broker/cli/", "broker/client/")
    assert {
        path
        for path in waiting
        if not path.startswith(elsewhere) and not any(fnmatch.fnmatch(path, pattern) for pattern in named)
    } == set()
    assert [pattern for pattern in named if not fnmatch.filter(files, pattern)] == []


def _paths(item: str) -> list[str]:
    """The files that an item names, as patterns: `a/b.py`, `c` are in one folder, and `a/` is all of it."""
    found: list[str] = []
    for name in re.findall(r"`([\w/*]+(?:\.py)?)`", item):
        if name.endswith("/"):
            found.append(name + "*")
        elif "/" in name or found:
            path = name if "/" in name else f"{found[-1].rpartition('/')[0]}/{name}"
            found.append(path if path.endswith(".py") else path + ".py")
    return found
