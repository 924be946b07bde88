"""The owner of a directory: whether it is a log's, and of which topic, by the id in `partition.metadata`, whose format
`checkpoints` describes.

Source: org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile.
"""

from __future__ import annotations

from barnabas.storage.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata, encode_partition_metadata
from barnabas.storage.errors import CorruptFile, StorageError, refusal
from barnabas.storage.files import Files, read_file, replace_file
from barnabas.wire.names import ZERO_TOPIC_ID, TopicId


def read_topic_id(files: Files, directory: str) -> TopicId:
    """The topic id of the log in a directory; ZERO_TOPIC_ID if there is none. Blocking.

    Raises:
        StorageError: the disk refused, or the file is damaged.
    """
    try:
        data = read_file(files, f"{directory}/{PARTITION_METADATA_FILE}")
        # A crash right after the file was created may leave it empty, or full of zeros: then it has no id.
        return decode_partition_metadata(data) if any(data) else ZERO_TOPIC_ID
    except FileNotFoundError:
        return ZERO_TOPIC_ID
    except CorruptFile as error:
        raise StorageError(f"{directory}: {error}") from None
    except OSError as error:
        raise refusal(f"reading the topic id of {directory}", error) from error


def write_topic_id(files: Files, directory: str, topic_id: bytes) -> str:
    """Write a topic's id, to the page cache only; returns the path to sync. Raises OSError."""
    path = f"{directory}/{PARTITION_METADATA_FILE}"
    replace_file(files, path, encode_partition_metadata(topic_id), sync=False)
    return path


def is_somebody_elses(files: Files, directory: str) -> bool:
    """Whether a directory with a log's name belongs to another program: its name begins with a dot, and it contains no
    file of a log, or is not readable. Desktops call the trash of a disk `.Trash-1000`, which would be the log of
    partition 1000 of a topic `.Trash`. Blocking.
    """
    if not directory.rpartition("/")[2].startswith("."):
        return False
    try:
        names = [entry.name for entry in files.list(directory)]
    except OSError:
        return True
    return not any(name == PARTITION_METADATA_FILE or name.endswith(".log") for name in names)
