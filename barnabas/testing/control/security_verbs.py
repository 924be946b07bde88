"""The verbs of security in the table (`verbs.py`): how clients connect, and its faults."""

from __future__ import annotations

from typing import Final

from barnabas.testing.control import actions, fields
from barnabas.testing.control.fields import Field
from barnabas.testing.control.verb import BROKER, LIMITS, Verb, fault_verb, post, state_verb

_USER: Final = Field("user", fields.TEXT, "The user. Default: all.")

SECURITY_VERBS: Final[tuple[Verb, ...]] = (
    post(
        f"{BROKER}/client_config",
        "Tell how a client of a user connects; a user that does not exist is added.",
        "ClientConfig",
        actions.client_config,
        Field("user", fields.TEXT, "The user. Default: client."),
        Field("client", fields.CLIENT, "Whose words: librdkafka's (the default), kafka-python's, or Java's."),
    ),
    fault_verb(
        "fail_authentication",
        "Refuse logins whose credentials are right.",
        Field("error", fields.ERROR, "Kafka's error. Default: SASL_AUTHENTICATION_FAILED."),
        Field("message", fields.TEXT, "The error message. Default: Kafka's."),
        Field("user", fields.TEXT, "Logins of this user. Default: of all."),
        Field("mechanism", fields.MECHANISM, "Logins by this mechanism. Default: by all."),
        fields=LIMITS,
    ),
    state_verb(
        "expire_authentication",
        "End the sessions of SASL of a user, as when a token expires.",
        _USER,
        answer="Sessions",
        told="sessions",
    ),
    fault_verb("certificate_expired", "Present a certificate that has expired, until the fault is removed.", fields=()),
    fault_verb(
        "certificate_of_other_host",
        "Present a certificate that names another host, until the fault is removed.",
        Field("host", fields.TEXT, "The name in it. Default: other.example."),
        fields=(),
    ),
    fault_verb(
        "deny",
        "Take a permission on one resource away from a user, until the fault is removed.",
        Field("user", fields.TEXT, "The user.", is_required=True),
        Field("operation", fields.TEXT, "Kafka's name of the operation, such as READ. Default: ALL."),
        Field("topic", fields.TEXT, "The topic."),
        Field("group", fields.TEXT, "The consumer group."),
        Field("transactional_id", fields.TEXT, "The transactional id."),
        fields=(),
    ),
    fault_verb(
        "quota",
        "Give a user, a client id, or both together a quota, until the fault is removed.",
        Field("user", fields.TEXT, "The user."),
        Field("client_id", fields.TEXT, "The client id."),
        Field("producer_byte_rate", fields.POSITIVE, "Bytes a second that it may produce."),
        Field("consumer_byte_rate", fields.POSITIVE, "Bytes a second that it may fetch."),
        Field("request_percentage", fields.RATE, "The share of time of its requests; 100 is one processor."),
        Field("controller_mutation_rate", fields.RATE, "Creations and deletions of partitions a second."),
        fields=(),
    ),
)
