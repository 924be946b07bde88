"""Orders from Kafka to SQLite. Whatever happens in between, each order is there once, in its latest state.

Started by `python order_writer.py localhost:9092 orders.sqlite`.
"""

import json
import sqlite3
import sys
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

TOPIC = "orders"
DEAD_LETTERS = "orders.dead-letters"
GROUP = "order-writer"

SCHEMA = """
create table if not exists orders (id text primary key, customer text not null, cents integer not null);
create table if not exists positions (part integer primary key, next_offset integer not null);
"""
WAIT_AND_SEE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._PARTITION_EOF})


class BadOrder(Exception):
    """A record that is no order."""


class OrderWriter:
    """Reads the topic `orders` and keeps a database as it says. How far it came is kept in the database, too, and
    changes with the orders in one transaction: the offsets that it commits are for those who watch its lag."""

    def __init__(self, bootstrap_servers: str, database: str, **settings: Any) -> None:
        self.database = sqlite3.connect(database)
        self.database.executescript(SCHEMA)
        common = {"bootstrap.servers": bootstrap_servers}
        self.dead_letters = Producer(common)
        self.consumer = Consumer(
            {
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
            | common
            | settings
        )
        self.consumer.subscribe([TOPIC], on_assign=self._begin_where_we_were)

    def step(self, timeout_s: float = 1.0) -> bool:
        """Take in the next record, if there is one within this time; whether there was. Raises KafkaException for what
        does not pass by itself."""
        message = self.consumer.poll(timeout_s)
        if message is None:
            return False
        if (error := message.error()) is not None:
            if error.retriable() or error.code() in WAIT_AND_SEE:
                return False
            raise KafkaException(error)
        self._take_in(message)
        return True

    def close(self) -> None:
        """Leave the group, so that others go on at once."""
        self.consumer.close()
        self.database.close()

    def _begin_where_we_were(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        known = dict(self.database.execute("select part, next_offset from positions"))
        for partition in partitions:
            partition.offset = known.get(partition.partition, OFFSET_BEGINNING)
        consumer.assign(partitions)

    def _take_in(self, message: Message) -> None:
        try:
            change = _change_of(message)
        except BadOrder as error:
            self._set_aside(message, str(error))
            change = None
        with self.database:
            if change is not None:
                self.database.execute(*change)
            position = message.partition(), message.offset() + 1
            self.database.execute("insert or replace into positions values (?, ?)", position)
        self.consumer.commit(message, asynchronous=True)

    def _set_aside(self, message: Message, reason: str) -> None:
        """Only when the record is safe elsewhere may its place be passed by."""
        where = f"{message.topic()}-{message.partition()}@{message.offset()}"
        self.dead_letters.produce(
            DEAD_LETTERS, message.value(), message.key(), headers={"reason": reason, "where": where}
        )
        if self.dead_letters.flush(30):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{where} cannot be set aside"))


def _change_of(message: Message) -> tuple[str, tuple[Any, ...]]:
    """The statement that takes an order in, and its arguments."""
    if message.key() is None:
        raise BadOrder("no key")
    number = message.key().decode(errors="replace")
    if message.value() is None:
        return "delete from orders where id = ?", (number,)
    try:
        order = json.loads(message.value())
        customer, cents = order["customer"], order["cents"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadOrder(f"{type(error).__name__}: {error}") from None
    if not isinstance(cents, int) or cents < 0:
        raise BadOrder(f"{cents!r} is no amount")
    return "insert or replace into orders values (?, ?, ?)", (number, customer, cents)


if __name__ == "__main__":
    writer = OrderWriter(*sys.argv[1:])
    try:
        while True:
            writer.step()
    except KeyboardInterrupt:
        writer.close()
