"""A broker on a machine with this boot id: `python -m tools.power_cut.boot ID serve ...`.

If only one file system loses its power, the kernel is not booted again and its own boot id does not change.
"""

import sys

from barnabas.__main__ import main as barnabas
from barnabas.broker.environment import Environment

if __name__ == "__main__":
    boot_id = sys.argv[1]
    barnabas(sys.argv[2:], Environment(boot_id=lambda: boot_id))
