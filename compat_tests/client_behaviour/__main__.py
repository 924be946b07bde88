"""`python -m compat_tests.client_behaviour`: have clients meet faults, on Barnabas and, where it can be brought to it,
on Apache Kafka, and write docs/client-behaviour.md. What is not looked at again stays there as it is."""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from compat_tests.client_behaviour.cases import Case, cases
from compat_tests.client_behaviour.on_kafka import Kafka
from compat_tests.client_behaviour.play import Client, Driver, clients, play, play_on
from compat_tests.client_behaviour.report import PAGE, cells, on_kafka, page

KAFKA_WAIT_S = 60.0
"""How long a client may take on Apache Kafka, whose restart takes as long as that of a Java program."""


def main() -> int:
    """Command line of this package."""
    parser = argparse.ArgumentParser(prog="python -m compat_tests.client_behaviour", description=__doc__)
    parser.add_argument("-k", dest="only", default="", help="only faults whose names contain this")
    parser.add_argument("--client", dest="names", action="append", choices=sorted(clients()), help="only these")
    parser.add_argument("--on", action="append", choices=("barnabas", "kafka"), help="only this one (default: both)")
    options = parser.parse_args()
    chosen = [case for case in cases() if options.only.lower() in case.name.lower()]
    found = [clients()[name] for name in options.names or clients()]
    told: dict[tuple[str, str], str] = {}
    if "barnabas" in (options.on or ["barnabas"]):
        with ThreadPoolExecutor(len(found)) as pool:
            for client, behaviours in zip(found, pool.map(lambda client: _play(client, chosen), found), strict=True):
                told |= {(client.title, name): behaviour for name, behaviour in behaviours.items()}
    if "kafka" in (options.on or ["kafka"]):
        for client, case, behaviour in _play_on_kafka(found, [case for case in chosen if case.is_real]):
            told[client.title, on_kafka(case)] = behaviour
    known = (cells(PAGE.read_text()) if PAGE.exists() else {}) | told
    PAGE.write_text(page(cases(), known, {client.title: client.version for client in clients().values()}))
    return 0


def _play(client: Client, chosen: list[Case]) -> dict[str, str]:
    behaviours = {}
    for case, behaviour in play(client, chosen):
        behaviours[case.name] = behaviour
        print(f"{client.title}: {case.name}: {behaviour}", flush=True)
    return behaviours


def _play_on_kafka(found: list[Client], chosen: list[Case]) -> Iterator[tuple[Client, Case, str]]:
    """One client after the other, as there is one Apache Kafka."""
    if not chosen:
        return
    with Kafka() as kafka:
        for client in found:
            with Driver(client) as driver:
                for case, behaviour in play_on(kafka, driver, client, chosen, wait_s=KAFKA_WAIT_S, attempts=1):
                    print(f"{client.title}: {on_kafka(case)}: {behaviour}", flush=True)
                    yield client, case, behaviour


if __name__ == "__main__":
    sys.exit(main())
