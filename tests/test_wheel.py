"""The wheel, in an environment of its own, with the dependencies of this one: what a user has who has no clone."""

import importlib.util
import os
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.required import tool_missing
from tools.processes import children
from tools.processes.barnabas import BarnabasProcess

ROOT: Final = Path(__file__).resolve().parent.parent
BUILDERS: Final = ("hatchling", "hatch_fancy_pypi_readme")
"""The build dependencies of pyproject.toml: without isolation, pip downloads nothing."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this tree."""
    if missing := [name for name in BUILDERS if importlib.util.find_spec(name) is None]:
        tool_missing(f"no {' and no '.join(missing)}")
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder, ROOT]
    children.run([sys.executable, "-m", "pip", *build], check=True, capture_output=True)
    [path] = folder.glob("barnabas-*.whl")
    return path


class Installation:
    """The wheel in a virtual environment, which also sees the packages of this one, though not this tree."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        children.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self._python = folder / "bin" / "python"
        install = ["install", "--no-deps", "--no-index", "--no-compile", wheel]
        children.run([sys.executable, "-m", "pip", "--python", self._python, *install], check=True, capture_output=True)
        [self.packages] = folder.glob("lib/python*/site-packages")
        # A .pth file names a folder to search, whose own .pth files, this tree's among them, are not read.
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    def run(self, *arguments: str, **environment: str) -> Any:
        """Run Python, away from the tree."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [self._python, *arguments]
        return children.run(command, cwd="/", env={**kept, **environment}, capture_output=True, text=True)


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(wheel, tmp_path_factory.mktemp("environment"))


@pytest.mark.slow
@pytest.mark.live
def test_no_other_package_lands_in_site_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"barnabas"}
    pipelines = {path.name for path in (ROOT / "barnabas" / "spark_examples").glob("*.py")}
    assert {Path(name).name for name in names if name.startswith("barnabas/spark_examples/")} == pipelines


@pytest.mark.slow
@pytest.mark.live
def test_a_pipeline_tells_its_options(installation: Installation) -> None:
    told = installation.run("-m", "barnabas.spark_examples.archive", "--help")
    assert told.returncode == 0, told.stderr
    assert "--bootstrap-servers" in told.stdout
    place = installation.run("-c", "import barnabas.spark_examples as it; print(*it.__path__)")
    assert place.stdout.strip() == str(installation.packages / "barnabas" / "spark_examples")


@pytest.mark.slow
@pytest.mark.live
def test_a_pipeline_without_pyspark_says_what_to_install(installation: Installation) -> None:
    without_pth_files = "-S"
    ended = installation.run(
        without_pth_files, "-m", "barnabas.spark_examples.archive", PYTHONPATH=str(installation.packages)
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "The Spark pipelines need PySpark: pip install 'barnabas[spark]' (in a clone: pip install -e '.[spark]')\n"
    )


@pytest.mark.full
@pytest.mark.live
@pytest.mark.spark
def test_a_pipeline_runs(installation: Installation, tmp_path: Path) -> None:
    with BarnabasProcess() as broker:

        def ours(command: str, *words: str) -> Any:
            reach = ("--bootstrap-server", broker.bootstrap_servers)
            done = installation.run("-m", "barnabas", *command.split(), *words, *reach)
            assert done.returncode == 0, done.stderr
            return done

        (tmp_path / "lines").write_text("to be\nor not to be\n")
        ours("topics create lines words")
        ours("produce lines", str(tmp_path / "lines"))

        ended = installation.run(
            "-m", "barnabas.spark_examples.stream_wordcount", "--once", f"--checkpoint={tmp_path}/words",
            f"--bootstrap-servers={broker.bootstrap_servers}",
        )  # fmt: skip

        assert ended.returncode == 0, ended.stderr
        counts = ours("consume words --from-beginning --exit-at-end --format", "{key} {value}\\n").stdout.splitlines()
        assert sorted(counts) == ["be 2", "not 1", "or 1", "to 2"]
