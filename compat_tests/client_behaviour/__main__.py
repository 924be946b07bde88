"""`python -m compat_tests.client_behaviour`: have clients meet faults, and write docs/client-behaviour.md. What is not
looked at again stays there as it is."""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from compat_tests.client_behaviour.cases import Case, cases
from compat_tests.client_behaviour.play import Client, clients, play
from compat_tests.client_behaviour.report import PAGE, cells, page


def main() -> int:
    """Command line of this package."""
    parser = argparse.ArgumentParser(prog="python -m compat_tests.client_behaviour", description=__doc__)
    parser.add_argument("-k", dest="only", default="", help="only faults whose names contain this")
    parser.add_argument("--client", dest="names", action="append", choices=sorted(clients()), help="only these")
    options = parser.parse_args()
    chosen = [case for case in cases() if options.only.lower() in case.name.lower()]
    names = options.names or list(clients())
    found = [clients()[name] for name in names]
    with ThreadPoolExecutor(len(found)) as pool:
        told = list(pool.map(lambda client: _play(client, chosen), found))
    known = cells(PAGE.read_text()) if PAGE.exists() else {}
    for client, behaviours in zip(found, told, strict=True):
        known |= {(client.title, name): behaviour for name, behaviour in behaviours.items()}
    PAGE.write_text(page(cases(), known, {client.title: client.version for client in clients().values()}))
    return 0


def _play(client: Client, chosen: list[Case]) -> dict[str, str]:
    behaviours = {}
    for case, behaviour in play(client, chosen):
        behaviours[case.name] = behaviour
        print(f"{client.title}: {case.name}: {behaviour}", flush=True)
    return behaviours


if __name__ == "__main__":
    sys.exit(main())
