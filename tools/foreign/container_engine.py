"""Runs a command with a container engine: the one that answers, or one of its own that ends with the command.

    python -m tools.foreign.container_engine python -m pytest tests/test_image.py
    python -m tools.foreign.container_engine --check    # status 0 where that can be done, else it says why it cannot

Where no engine answers, root on Debian gets one: Debian's package docker.io is installed, and its daemon started with
a socket, a pid file and data of its own in a temporary folder. It makes no bridge and no firewall rules, so that the
machine's network stays as it is: what it builds and runs uses the host's. It downloads no image either: the base of
what is built is a Debian with Python, made by debootstrap and kept in the cache folder. When the command ends, however
it does, so does the daemon, and its data is deleted. The packages stay.

The command is told by environment variables: DOCKER_HOST, and with an engine of its own BARNABAS_IMAGE_BASE (the base
image), BARNABAS_IMAGE_NETWORK (`host`) and TESTCONTAINERS_RYUK_DISABLED (its image cannot be had).
"""

import hashlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import docker

from barnabas.spark_examples.ivy import exclusive
from barnabas.spark_examples.java import cache_folder, install_debian_packages, say

PROGRAMS = {"dockerd": "docker.io", "debootstrap": "debootstrap", "setpriv": "util-linux"}
"""The programs needed to start an engine, and the Debian package of each."""
SUITE = "trixie"
"""The Debian release of the base image; its Python is 3.13, as in the Dockerfile's image."""
BASE = "barnabas-base"
LEFT_OUT = ("./dev", "./proc", "./sys", "./var/cache/apt/*", "./var/lib/apt/lists/*", "./usr/share/doc/*",
            "./usr/share/man/*", "./usr/share/locale/*")  # fmt: skip
TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")
"""The certificates that this machine trusts: builds in containers reach the package registries in the same way."""

PING_TIMEOUT_S = 5
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
IMPORT_TIMEOUT_S = 300
ATTEMPTS = 3
CAP_SYS_ADMIN = 21


class EngineMissing(Exception):
    """No container engine responds and none can be started; the message says why and how to fix it."""


# --- the running engine -------------------------------------------------------------------------------------------


def addresses(environment: Mapping[str, str]) -> list[str]:
    """The possible addresses of an engine: DOCKER_HOST if it is set, else the defaults of Docker and Podman."""
    if named := environment.get("DOCKER_HOST"):
        return [named]
    runtime = environment.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    sockets = ["/var/run/docker.sock", f"{Path.home()}/.docker/run/docker.sock", f"{runtime}/docker.sock",
               f"{runtime}/podman/podman.sock", "/run/podman/podman.sock"]  # fmt: skip
    return [f"unix://{path}" for path in sockets if Path(path).exists()]


def answering(candidates: Sequence[str]) -> str | None:
    """The first address at which an engine responds."""
    return next((address for address in candidates if _answers(address)), None)


def _answers(address: str) -> bool:
    path = address.removeprefix("unix://")
    if path != address and not _is_listening(path):  # docker's client would leave its socket open
        return False
    try:
        client = docker.DockerClient(base_url=address, timeout=PING_TIMEOUT_S)
    except docker.errors.DockerException:
        return False
    with closing(client):
        try:
            return bool(client.ping())
        except (docker.errors.DockerException, OSError):
            return False


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


# --- an engine of this program ------------------------------------------------------------------------------------


def reason_against(user: int, distribution: str, capabilities: int) -> str | None:
    """The reason why this user cannot start an engine, on this distribution, with these effective capabilities."""
    if user != 0:
        return "no container engine answers, and only root can put one in place: start Docker or Podman, or be root"
    if distribution != "debian":
        return f"no container engine answers, and one is put in place on Debian only, not on {distribution}: start one"
    if not capabilities >> CAP_SYS_ADMIN & 1:
        return "no container engine answers, and root has no leave to mount here (CAP_SYS_ADMIN): start one elsewhere"
    return None


def _reason_against_here() -> str | None:
    try:
        distribution = platform.freedesktop_os_release()["ID"]
        status = Path("/proc/self/status").read_text()
    except OSError:
        return reason_against(os.geteuid(), platform.system(), 0)
    [capabilities] = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return reason_against(os.geteuid(), distribution, int(capabilities, 16))


@contextmanager
def own_engine() -> Iterator[dict[str, str]]:
    """Start a daemon and load the base image; yields the environment variables for a command. Raises EngineMissing."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if packages and not install_debian_packages(packages):
        raise EngineMissing(f"{' and '.join(packages)} cannot be installed: see apt-get's messages above")
    archive = base_archive()
    folder = Path(tempfile.mkdtemp(prefix="container-engine-"))
    try:
        with _daemon(folder) as address:
            say(f"A container engine of its own listens on {address}.")
            with closing(docker.DockerClient(base_url=address, timeout=IMPORT_TIMEOUT_S)) as client:
                client.api.import_image_from_file(str(archive), repository=BASE, tag="latest")
                client.images.get(BASE)  # a failed import is only reported in its response
            yield {
                "DOCKER_HOST": address,
                "BARNABAS_IMAGE_BASE": BASE,
                "BARNABAS_IMAGE_NETWORK": "host",
                "TESTCONTAINERS_RYUK_DISABLED": "true",
            }
    finally:
        _unmount_below(folder)
        shutil.rmtree(folder)


@contextmanager
def _daemon(folder: Path) -> Iterator[str]:
    """A dockerd with all its files in a folder. It ends with this program, also if that is killed."""
    address = f"unix://{folder}/docker.sock"
    command = ["setpriv", "--pdeathsig", "TERM", "dockerd", "--host", address, "--pidfile", f"{folder}/docker.pid",
               "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec",
               "--bridge=none", "--iptables=false", "--ip6tables=false"]  # fmt: skip
    with (folder / "log").open("w") as log:
        # In a separate session: Ctrl-C is for the command, and the daemon ends after it.
        daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(address):
            if daemon.poll() is not None or time.monotonic() > deadline:
                lines = (folder / "log").read_text().splitlines()[-10:]
                raise EngineMissing("\n".join(["the container engine's daemon did not start; its last lines:", *lines]))
            time.sleep(0.1)
        yield address
    finally:
        daemon.terminate()
        try:
            daemon.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _unmount_below(folder: Path) -> None:
    """Unmount everything a daemon has left, such as the host's network namespace."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in reversed([place for place in places if place.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", place], check=False)


def base_archive() -> Path:
    """The base image's files as a tar archive in the cache folder; created if missing. Raises EngineMissing."""
    trusted = TRUSTED.read_bytes() if TRUSTED.exists() else b""
    name = f"{SUITE}-python-{platform.machine()}-{hashlib.sha256(trusted).hexdigest()[:12]}.tar.gz"
    archive = cache_folder() / "images" / name
    with exclusive(archive.with_name(f"{name}.lock")):
        if not archive.exists():
            say(f"Making the base image {archive} with debootstrap ...")
            _make_base(archive, trusted)
    return archive


def _make_base(archive: Path, trusted: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="base-image-") as text:
        folder, log = Path(text), Path(text) / "log"
        for attempt in range(1, ATTEMPTS + 1):
            root = folder / f"root-{attempt}"
            command = [
                "debootstrap",
                "--variant=minbase",
                "--include=python3,python3-venv,ca-certificates",
                SUITE,
                str(root),
            ]
            with log.open("w") as output:
                if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode == 0:
                    break
            if attempt == ATTEMPTS:
                lines = log.read_text().splitlines()[-5:]
                raise EngineMissing("\n".join(["debootstrap could not make a base image; its last lines:", *lines]))
        if trusted:
            (root / TRUSTED.relative_to("/")).write_bytes(trusted)
        unfinished = archive.with_suffix(".unfinished")
        excluded = [f"--exclude={pattern}" for pattern in LEFT_OUT]
        subprocess.run(["tar", "-C", str(root), "--numeric-owner", *excluded, "-czf", str(unfinished), "."], check=True)
        unfinished.replace(archive)


# --- the command line ---------------------------------------------------------------------------------------------


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """A running engine, or a new one; yields the environment variables for a command. Raises EngineMissing."""
    if address := answering(addresses(os.environ)):
        yield {"DOCKER_HOST": address}
        return
    if reason := _reason_against_here():
        raise EngineMissing(reason)
    with own_engine() as variables:
        yield variables


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end: Ctrl-C goes to it by itself, SIGTERM is passed on. Returns its exit status."""
    with subprocess.Popen(command, env=environment) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        while True:
            try:
                status = process.wait()
            except KeyboardInterrupt:
                continue
            return status if status >= 0 else 128 - status


def _ended(_: int, __: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    """Run a command. Returns its exit status, or that of --check."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    signal.signal(signal.SIGTERM, _ended)
    try:
        if list(arguments) == ["--check"]:
            if not answering(addresses(os.environ)) and (reason := _reason_against_here()):
                raise EngineMissing(reason)
            return 0
        with engine() as variables:
            return _run(arguments, {**os.environ, **variables})
    except EngineMissing as missing:
        say(f"{missing}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
