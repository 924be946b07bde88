import pickle
import re

import pytest

from barnabas.wire import codec
from barnabas.wire.errors import ApiError, ErrorCode, ProtocolError
from barnabas.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse


def test_codes_have_no_gaps() -> None:
    assert [error.value for error in ErrorCode] == list(range(-1, 134))
    assert not ErrorCode.NONE


def test_every_error_has_a_sentence_of_its_own() -> None:
    messages = [error.message for error in ErrorCode if error is not ErrorCode.NONE]
    assert all(re.fullmatch(r"[A-Z].*\.", message) for message in messages)
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, True),
        (ErrorCode.NOT_ENOUGH_REPLICAS, True),
        (ErrorCode.UNKNOWN_TOPIC_ID, True),
        (ErrorCode.REBALANCE_IN_PROGRESS, False),
        (ErrorCode.OFFSET_OUT_OF_RANGE, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, False),
        (ErrorCode.NONE, False),
    ],
)
def test_retriable(error: ErrorCode, retriable: bool) -> None:
    assert error.retriable is retriable


def test_kio_agrees() -> None:
    from kio.schema.errors import ErrorCode as KioErrorCode

    for theirs in KioErrorCode:
        if int(theirs.value) not in [error.value for error in ErrorCode]:  # kio may know newer ones
            continue
        ours = ErrorCode(theirs.value)
        assert ours.name.casefold().replace("_exception", "") == theirs.name.casefold().replace("_exception", "")
        assert ours.retriable == theirs.retriable, ours


def test_unknown_codes() -> None:
    assert ErrorCode.of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    with pytest.raises(ValueError, match="9999"):
        ErrorCode(9999)


def test_pickle() -> None:
    assert pickle.loads(pickle.dumps(ErrorCode.INVALID_RECORD)) is ErrorCode.INVALID_RECORD


def test_api_error() -> None:
    error = ApiError(ErrorCode.INVALID_CONFIG, "retention.ms must be a number")
    assert error.error is ErrorCode.INVALID_CONFIG
    assert error.message == "retention.ms must be a number"
    assert str(error) == "INVALID_CONFIG: retention.ms must be a number"
    assert ApiError(ErrorCode.INVALID_CONFIG).message == ErrorCode.INVALID_CONFIG.message
    assert not isinstance(error, ProtocolError)


def test_a_message_too_long_for_a_response_is_cut() -> None:
    """It may name what the client sent, and a client may send as much as a string holds."""
    error = ApiError(ErrorCode.INVALID_CONFIG, "Invalid value " + "\U0001f600" * 32_767)
    assert error.message == "Invalid value " + "\U0001f600" * 32_767
    response = CreateTopicsResponse(
        topics=[CreatableTopicResult(name="t", error_code=error.error, error_message=error.message)]
    )
    for version in range(2, 8):
        written = codec.decode(CreateTopicsResponse, version, bytes(codec.encode(response, version)))
        message = written.topics[0].error_message
        assert message is not None
        assert error.message.startswith(message), "no half of a character"
        assert 32_760 < len(message.encode()) <= 32_767
