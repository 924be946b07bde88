"""`python -m compat_tests.client_behaviour`: have clients meet faults, on Barnabas and, where it can be brought to it,
on Apache Kafka, and write docs/client-behaviour.md. What is not looked at again stays there as it is."""

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from compat_tests.client_behaviour.case import WAIT_S, Case
from compat_tests.client_behaviour.cases import cases
from compat_tests.client_behaviour.on_kafka import Kafka
from compat_tests.client_behaviour.play import Client, Driver, clients, play, play_on
from compat_tests.client_behaviour.report import PAGE, UNKNOWN, cells, on_kafka, page

KAFKA_WAIT_S = 60.0
"""How long a client may take on a single Apache Kafka, whose restart takes as long as that of a Java program."""


def main() -> int:
    """Command line of this package."""
    parser = argparse.ArgumentParser(prog="python -m compat_tests.client_behaviour", description=__doc__)
    parser.add_argument("-k", dest="only", default="", help="only faults whose names contain this")
    parser.add_argument("--client", dest="names", action="append", choices=sorted(clients()), help="only these")
    parser.add_argument("--on", action="append", choices=("barnabas", "kafka"), help="only this one (default: both)")
    parser.add_argument("--missing", action="store_true", help='only what the page says "not measured" of')
    options = parser.parse_args()
    logging.getLogger("barnabas").setLevel(logging.ERROR)  # brokers that are killed are missed by the others
    found = [clients()[name] for name in options.names or clients()]
    known = cells(PAGE.read_text()) if PAGE.exists() else {}

    def is_wanted(client: Client, name: str) -> bool:
        return not options.missing or known.get((client.title, name), UNKNOWN) == UNKNOWN

    at_all = [case for case in cases() if options.only.lower() in case.name.lower()]
    here = {client: [case for case in at_all if is_wanted(client, case.name)] for client in found}
    there = {
        client: [case for case in at_all if case.is_real and is_wanted(client, on_kafka(case))] for client in found
    }
    told: dict[tuple[str, str], str] = {}
    try:
        if "barnabas" in (options.on or ["barnabas"]):
            with ThreadPoolExecutor(len(found)) as pool:
                for client, behaviours in zip(found, pool.map(_play, here, here.values()), strict=True):
                    told |= {(client.title, name): behaviour for name, behaviour in behaviours.items()}
        if "kafka" in (options.on or ["kafka"]):
            for client, case, behaviour in _play_on_kafka(there):
                told[client.title, on_kafka(case)] = behaviour
    finally:  # what was seen before something went wrong, or somebody had enough, is seen
        PAGE.write_text(page(cases(), known | told, {client.title: client.version for client in clients().values()}))
    return 0


def _play(client: Client, chosen: list[Case]) -> dict[str, str]:
    behaviours = {}
    for case, behaviour in play(client, chosen):
        behaviours[case.name] = behaviour
        print(f"{client.title}: {case.name}: {behaviour}", flush=True)
    return behaviours


def _play_on_kafka(wanted: Mapping[Client, list[Case]]) -> Iterator[tuple[Client, Case, str]]:
    """One client after the other, as there is one Apache Kafka at a time."""
    for brokers in sorted({case.brokers for chosen in wanted.values() for case in chosen}):
        wait_s = KAFKA_WAIT_S if brokers == 1 else WAIT_S
        with Kafka(brokers) as kafka:
            for client, chosen in wanted.items():
                on_it = [case for case in chosen if case.brokers == brokers]
                with Driver(client) as driver:
                    for case, behaviour in play_on(kafka, driver, client, on_it, wait_s=wait_s, attempts=1):
                        print(f"{client.title}: {on_kafka(case)}: {behaviour}", flush=True)
                        yield client, case, behaviour


if __name__ == "__main__":
    sys.exit(main())
