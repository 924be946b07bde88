"""A transactional producer that writes transaction after transaction until it is refused, in a process of its own.

    python zombie.py BOOTSTRAP_SERVERS TRANSACTIONAL_ID TOPIC

Prints `open N` when the records of transaction N are written and `committed N` after its commit, and as its last line
`refused` with the error's name.
"""

import itertools
import sys

from confluent_kafka import KafkaException, Producer

from tools.waiting import PATIENCE_S

RECORDS = 5


def main() -> None:
    bootstrap_servers, transactional_id, topic = sys.argv[1:]
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(PATIENCE_S)
    try:
        for number in itertools.count():
            producer.begin_transaction()
            for record in range(RECORDS):
                producer.produce(topic, f"zombie {number} {record}")
            producer.flush(PATIENCE_S)
            print(f"open {number}", flush=True)
            producer.commit_transaction(PATIENCE_S)
            print(f"committed {number}", flush=True)
    except KafkaException as error:
        print(f"refused {error.args[0].name()}", flush=True)


if __name__ == "__main__":
    main()
