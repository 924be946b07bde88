"""The table of entries agrees with the messages: it has each API, each error code, and each field that names
something."""

import re
from collections.abc import Iterator

import pytest

from barnabas.broker.handlers import apis_between_brokers, served_apis
from barnabas.testing.interception.api_entries import API_ENTRIES, ERROR, Roles
from barnabas.wire import messages
from barnabas.wire.messages import API_NAMES
from barnabas.wire.schema import Array, Message

NAMING = re.compile(
    r"(.*\.)?(topic|topics\.name|topic_(name|names|id|data\.name)|(ungrouped_)?partitions?(_index|_indexes|_id)?|group_id"
    r"|groups|groups_names|(.*_)?transactional_ids?|coordinator_keys|resource_name)"
)
"""The paths of fields that name a topic, a partition and so on, as Kafka calls them."""

ABOUT_NOTHING = {
    "Fetch.forgotten_topics_data.topic",
    "Fetch.forgotten_topics_data.topic_id",
    "Fetch.forgotten_topics_data.partitions",
    "DescribeTopicPartitions.cursor.topic_name",
    "DescribeTopicPartitions.cursor.partition_index",
}
"""The fields with names of objects that are not the subject of the request."""


OF_CONFIGS = {"topics.topic_config_error_code"}
"""The reason why a response has no configs of a topic, which was created all the same."""


def paths(struct: type[Message], above: str = "") -> Iterator[tuple[str, bool]]:
    """The paths of the fields of a message, and whether one is of structs."""
    for field in struct.FIELDS:
        element = field.type.element if isinstance(field.type, Array) else field.type
        yield f"{above}{field.name}", isinstance(element, type)
        if isinstance(element, type):
            yield from paths(element, f"{above}{field.name}.")


def entered(roles: Roles, above: str = "") -> Iterator[tuple[str, str | None]]:
    """The paths of a table, and their roles; None for structs."""
    for name, role in roles.items():
        yield f"{above}{name}", role if isinstance(role, str) else None
        if not isinstance(role, str):
            yield from entered(role, f"{above}{name}.")


def test_each_api_that_is_served_is_in_the_table() -> None:
    assert set(API_ENTRIES) == {API_NAMES[key] for key in (*served_apis(), *apis_between_brokers())}


@pytest.mark.parametrize("name", API_ENTRIES)
def test_each_entry_is_a_field_of_the_messages(name: str) -> None:
    api = messages.api(next(key for key, known in API_NAMES.items() if known == name))
    asked, answered = API_ENTRIES[name]
    for table, message in ((asked, api.request_class), (answered, api.response_class)):
        kinds = dict(paths(message))
        for path, role in entered(table):
            assert kinds[path] == (role is None), path
    assert ERROR not in dict(entered(asked)).values()


@pytest.mark.parametrize("name", API_ENTRIES)
def test_each_error_code_of_a_response_is_in_the_table(name: str) -> None:
    api = messages.api(next(key for key, known in API_NAMES.items() if known == name))
    codes = {path for path, _ in paths(api.response_class) if path.endswith("error_code")}
    assert {path for path, role in entered(API_ENTRIES[name].answered) if role == ERROR} == codes - OF_CONFIGS


@pytest.mark.parametrize("name", API_ENTRIES)
def test_each_naming_field_of_a_request_is_in_the_table(name: str) -> None:
    api = messages.api(next(key for key, known in API_NAMES.items() if known == name))
    naming = {path for path, is_of_structs in paths(api.request_class) if not is_of_structs and NAMING.fullmatch(path)}
    known = {path for path, role in entered(API_ENTRIES[name].asked) if role is not None}
    assert {f"{name}.{path}" for path in naming - known} <= ABOUT_NOTHING
