"""Numbers in configurations are read as Java reads them: the same texts are given to Kafka's own ConfigDef."""

from __future__ import annotations

from itertools import product

import pytest

from barnabas.broker.configuration.definitions import (
    DOUBLE,
    INT,
    LONG,
    LOW,
    SHORT,
    TYPE_NAMES,
    ConfigKey,
    ConfigValueError,
    parse,
)

INTEGERS = [
    "0", "7", "+7", "-7", " 7\t", "\x00\x1f7\n", "\u00a07", "\u20037", "", "+", "-", "--7", "+-7", "7.0", "1e3",
    "0x10", "7L", "1_000", "1,000", "\u0661\u0662", "\u0967", "\uff17", "1\u0662", "-\u0663", "\u00b2", "\u2166",
    "\U0001d7cf", "9" * 40, "0" * 60 + "5", "32767", "32768", "-32768", "-32769", "2147483647", "2147483648",
    "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
    "-9223372036854775809",
]  # fmt: skip
DOUBLES = [
    "0.5", "0.5f", "0.5F", "0.5d", "0.5D", " 0.5 ", "\x00.5\x1f", "\u00a00.5", ".5", "5.", ".", "", "f", "+.5e-3d",
    "1e3", "1E+3f", "1e", "1e3.0", "1L", "0x1p-1", "0X1.8P1", "0x.8p0", "0x1.p0", "0x1p-1f", "0x1p+1D", "-0x1p3",
    "0x1", "0x1.8", "0x.p1", "0xp1", "0x1p99999", "-0x1p99999", "0x1p-99999", "Infinity", "+Infinity", "-Infinity",
    "infinity", "inf", "nan", "1_0.0", "1,5", "\u0661", "\u0661.5", "1e999", "-1e999", "1e-999", "0.1", "9" * 400,
]  # fmt: skip


def read(kind: int, text: str) -> object:
    """The value, or None where the text is refused."""
    try:
        return parse(ConfigKey(kind, None, None, LOW, name="k"), text)
    except ConfigValueError:
        return None


@pytest.mark.java
def test_numbers_are_read_as_kafka_reads_them() -> None:
    from py4j.protocol import Py4JJavaError

    from tools.jvm.shared import SharedJvm

    with SharedJvm() as jvm:
        definition = jvm.java.org.apache.kafka.common.config.ConfigDef

        def read_by_kafka(kind: int, text: str) -> object:
            try:
                return definition.parseType("k", text, getattr(definition.Type, TYPE_NAMES[kind]))
            except Py4JJavaError as error:
                if "ConfigException" in error.java_exception.getClass().getName():
                    return None
                raise

        asked = [*product((SHORT, INT, LONG), INTEGERS), *((DOUBLE, text) for text in DOUBLES)]
        answers = {(kind, text): (read(kind, text), read_by_kafka(kind, text)) for kind, text in asked}
    assert {case: found for case, found in answers.items() if found[0] != found[1]} == {}
    assert any(theirs is not None for _, theirs in answers.values())


def test_nan_is_refused() -> None:
    """Kafka takes it, also where a range is asked for: no comparison with it holds."""
    assert read(DOUBLE, "NaN") is None
