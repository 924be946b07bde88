"""kcat (librdkafka of the system): a process for each producer and consumer."""

from __future__ import annotations

import re
import shutil
import subprocess

from driver import NOTHING, OK, Login, serve

KCAT = shutil.which("kcat") or "kcat"
WORDS = {
    "Authentication failure": "_AUTHENTICATION",
    "Broker transport failure": "_TRANSPORT",
    "SSL error": "_SSL",
    "Topic authorization failed": "TOPIC_AUTHORIZATION_FAILED",
    "Group authorization failed": "GROUP_AUTHORIZATION_FAILED",
    "Not authorized to access the group": "GROUP_AUTHORIZATION_FAILED",
}
"""What kcat prints of errors: librdkafka's texts, and the broker's."""
SAID = re.compile("|".join(WORDS), re.IGNORECASE)


def options(login: Login) -> list[str]:
    found = {"bootstrap.servers": login.servers, "security.protocol": login.protocol}
    if login.has_tls:
        found["ssl.ca.location"] = login.ca
    if login.certificate:
        found |= {"ssl.certificate.location": login.certificate, "ssl.key.location": login.certificate}
    if login.mechanism:
        found |= {
            "sasl.mechanisms": login.mechanism,
            "sasl.username": login.username,
            "sasl.password": login.password,
        }
    return [f"-X{key}={value}" for key, value in found.items()]


def run(login: Login, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [KCAT, *options(login), *arguments],
            input="1\n", capture_output=True, text=True, timeout=login.deadline_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as expired:
        return _name((expired.stderr or b"").decode())
    return OK if done.returncode == 0 else _name(done.stderr)


def _name(said: str) -> str:
    found = SAID.search(said)
    words = {text.lower(): name for text, name in WORDS.items()}
    return words[found[0].lower()] if found else NOTHING


def produce(login: Login) -> str:
    return run(login, "-P", "-t", login.topic)


def consume(login: Login) -> str:
    return run(login, "-X", "auto.offset.reset=earliest", "-c", "1", "-G", login.group, login.topic)


if __name__ == "__main__":
    serve(produce, consume)
