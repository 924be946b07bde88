"""The package `barnabas` as a zip file that Python imports from, for drivers and workers that have not installed it.

    python -m barnabas.spark_examples.modules pipelines.zip

spark-submit's --py-files takes it.
"""

import os
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import barnabas


def write_modules(path: Path) -> None:
    """Write the zip file.

    It has the whole package: whatever it lacked could not be imported where the package is installed, either.
    """
    package = Path(barnabas.__file__).parent
    with ZipFile(path, "w", ZIP_DEFLATED) as modules:
        for folder, _, names in os.walk(package, followlinks=True):  # links of a clone: docs/decisions/0001-layout.md
            for file in (Path(folder, name) for name in sorted(names) if name.endswith(".py")):
                modules.write(file, file.relative_to(package.parent))


def main() -> int:
    """Write what the command line names."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("modules: FILE.zip is needed, and nothing else", file=sys.stderr)
        return 2
    write_modules(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
