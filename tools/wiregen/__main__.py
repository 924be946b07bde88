"""Generate wire/messages from Kafka's own message definitions.

    python -m tools.wiregen            write the modules
    python -m tools.wiregen --check    write nothing; exit 1 if a module is not what would be written

The definitions come out of Kafka's jars, which are downloaded once (see jars.py). Only facts are taken over:
names, types, version ranges, defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.wiregen.definitions import parse
from tools.wiregen.jars import read_definition
from tools.wiregen.render import render_module, render_table, snake_case
from tools.wiregen.selection import APIS, DATA, OWN_FIELDS

FOLDER = Path(__file__).resolve().parents[2] / "wire"
TABLE = "api_table.py"


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.wiregen", description="Generate wire/messages and wire/api_table.py."
    )
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    only_compare = parser.parse_args().check
    wanted = dict(modules())
    paths = [FOLDER / TABLE, *(path for path in FOLDER.glob("messages/*.py") if path.name != "__init__.py")]
    present = {str(path.relative_to(FOLDER)): path.read_text() for path in paths if path.exists()}
    differing = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    for name in differing:
        print(f"{'differs' if only_compare else 'writing'}: {name}")
        if only_compare:
            continue
        if name in wanted:
            (FOLDER / name).write_text(wanted[name])
        else:
            (FOLDER / name).unlink()
    return 1 if differing and only_compare else 0


def modules() -> Iterator[tuple[str, str]]:
    """The path below `wire/` and the text of every generated module."""
    requests = []
    for jar, apis in APIS.items():
        for api in apis:
            request, response = [
                parse(read_definition(jar, api + kind), OWN_FIELDS) for kind in ("Request", "Response")
            ]
            yield f"messages/{snake_case(api)}.py", render_module([request, response], source=jar)
            requests.append(request)
    for jar, names in DATA.items():
        for name in names:
            definition = parse(read_definition(jar, name))
            yield f"messages/{snake_case(name)}.py", render_module([definition], source=jar)
    yield TABLE, render_table(requests)


if __name__ == "__main__":
    sys.exit(main())
