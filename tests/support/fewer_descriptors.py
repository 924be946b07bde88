"""The command in a process with fewer descriptors: `python -m tests.support.fewer_descriptors NUMBER serve ...`."""

import resource
import sys

from barnabas.__main__ import main as barnabas

if __name__ == "__main__":
    number = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))  # the hard limit, too: a server raises its own to that
    barnabas(sys.argv[2:])
