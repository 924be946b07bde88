"""Finds Java, or installs it as root on Debian, and names the folder of downloads.

`python -m barnabas.spark_examples.java` checks (and, as root on Debian, installs) and says what it found.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

OLDEST_JAVA = 17
DEBIAN_PACKAGE = "openjdk-17-jre-headless"


class JavaMissing(RuntimeError):
    """No usable Java; the message says what to install."""


def cache_folder() -> Path:
    """The folder of downloads: `BARNABAS_CACHE`, else `$XDG_CACHE_HOME/barnabas`, else `~/.cache/barnabas`."""
    if override := os.environ.get("BARNABAS_CACHE"):
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas"


def say(text: str) -> None:
    """Tell the person at the terminal what is going on, out of the way of a program's own output."""
    print(text, file=sys.stderr, flush=True)


def java_major_version(java: Path) -> int | None:
    """The feature release of a `java` binary (17, 21, ...), None when it does not run."""
    try:
        # A signal to our process group must not make it look as if this were no Java.
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True, process_group=0
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if version is None:
        return None
    first = int(version[1])
    return int(version[2] or 0) if first == 1 else first  # "1.8.0_392" is Java 8


def installed_java() -> Path | None:
    """A Java of at least OLDEST_JAVA: `JAVA_HOME` first, then the PATH, then Debian's folder of JVMs."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    candidates += sorted(Path("/usr/lib/jvm").glob("*/bin/java"))
    return next((java for java in candidates if (java_major_version(java) or 0) >= OLDEST_JAVA), None)


def install_debian_packages(packages: Sequence[str]) -> bool:
    """Install packages with apt-get; False where there is no apt-get, we are not root, or it fails."""
    apt_get = shutil.which("apt-get")
    if apt_get is None or os.geteuid() != 0:
        return False
    say(f"Installing {' '.join(packages)} with apt-get ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
        if subprocess.run([apt_get, *command], env=environment, stdout=sys.stderr, check=False).returncode:
            say(f"apt-get {command[0]} failed")
            return False
    return True


@functools.cache
def find_java() -> Path:
    """The `java` to use.

    Raises JavaMissing when there is none and it cannot be installed here.
    """
    java = installed_java()
    if java is None and install_debian_packages([DEBIAN_PACKAGE]):
        java = installed_java()
    if java is None:
        raise JavaMissing(
            f"Java {OLDEST_JAVA} or 21 is needed (for Spark and Kafka's own tools) and was not found. Install it, for "
            f"example with `sudo apt-get install {DEBIAN_PACKAGE}` or `brew install openjdk@17`, or set JAVA_HOME."
        )
    return java


if __name__ == "__main__":
    try:
        say(f"Java: {find_java()}")
    except JavaMissing as missing:
        sys.exit(str(missing))
