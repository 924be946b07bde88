"""The Java process that runs the tools (tools/jvm/shared.py), where their own tests would not show it."""

from typing import Any

import py4j.java_gateway
import pytest
from pyspark.errors.exceptions.captured import install_exception_handler

from compat_tests.java_tools.kafka_tools import of_4_3_only

pytestmark = pytest.mark.java


@of_4_3_only
def test_tools_end_as_ever_after_a_spark_in_the_same_python(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.java_gateway.get_return_value)
    install_exception_handler()  # as a Spark session does

    refused = tools.run("kafka-topics", "--describe", "--topic", "no-such-topic", status=1)

    assert "does not exist" in refused.out + refused.err
    assert tools.run("kafka-cluster", "cluster-id").lines
