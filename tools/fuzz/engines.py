"""The two sources of inputs for a target: our mutations, and libFuzzer by way of atheris, guided by coverage.

libFuzzer's memory, which holds every input that reached something new, is not counted: it has a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import random
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType

import barnabas
from tools.fuzz.mutation import Mutator
from tools.fuzz.session import Growth, Session, corpus, run_one
from tools.fuzz.target import Target

_BATCH = 200


def fuzz(target: Target, seconds: float, rng: random.Random, folder: Path) -> bool:
    """Fuzz one target for `seconds` with mutations; returns whether nothing was found."""
    session = Session(target, folder)
    mutator = Mutator([*target.seeds(), *(path.read_bytes() for path in corpus(target, folder))], rng)
    gc.collect()
    gc.freeze()  # existing objects need not be searched at every sample
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        for _ in range(_BATCH):
            session.feed(mutator.next())
        session.sample_memory()
    growth = session.growth
    _tell(target, elapsed, len(session.found), growth)
    return not session.found and not growth.is_too_much


def _tell(target: Target, seconds: float, findings: int, growth: Growth) -> None:
    inputs = growth.late.inputs
    print(f"{target.name:20} {inputs:>10} inputs in {seconds:6.1f} s, {findings} findings, {growth}", flush=True)


def fuzz_with_atheris(target: Target, seconds: float, seed: int, folder: Path) -> bool:
    """Fuzz one target with libFuzzer's inputs. libFuzzer runs in a separate process to measure the coverage of each
    input; here the input is read again, where only the reader holds memory.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_atheris, args=(target, seconds, seed, folder, sender))
    session = Session(target, folder)
    started = time.monotonic()
    process.start()
    sender.close()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(EOFError):
        while True:
            for data in receiver.recv():
                session.feed(data)
            session.sample_memory()
    process.join()
    if process.exitcode or not session.inputs:
        print(f"{target.name:20} libFuzzer ended with {process.exitcode}, see its lines above", flush=True)
        return False
    growth = session.growth
    _tell(target, time.monotonic() - started, len(session.found), growth)
    return not session.found and not growth.is_too_much


def _run_atheris(target: Target, seconds: float, seed: int, folder: Path, inputs: Connection) -> None:
    """Send lists of the inputs that libFuzzer chose. The last list is cut off by libFuzzer's exit, and lost unless it
    contains a finding.
    """
    import atheris

    grown = Path(tempfile.gettempdir()) / "barnabas-fuzz" / target.name
    grown.mkdir(parents=True, exist_ok=True)
    (folder / target.name).mkdir(parents=True, exist_ok=True)
    for index, data in enumerate([*target.seeds(), *(path.read_bytes() for path in corpus(target, folder))]):
        (grown / f"seed-{index}").write_bytes(data)
        run_one(target, data)  # compiles the required decoders, to be instrumented with the rest
    for function in (target.run, *_own_functions()):
        atheris.instrument_func(function)
    batch: list[bytes] = []

    def feed(data: bytes) -> None:
        batch.append(data)
        is_well = False
        with contextlib.suppress(BaseException):  # it is reported when the input is read again
            target.run(data)
            is_well = True
        if len(batch) >= _BATCH or not is_well:
            inputs.send(batch)
            batch.clear()

    arguments = [
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        f"-artifact_prefix={folder / target.name}/",
        f"-max_len={1 << 16}",
        "-timeout=20",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *arguments, str(grown)], feed)
    atheris.Fuzz()


def _own_functions() -> list[FunctionType]:
    """The functions of Barnabas, also the generated ones, whose coverage is measured. Instrumenting everything takes a
    minute.
    """
    places = (*barnabas.__path__, "<reader of ", "<writer of ")
    found = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    return [each for each in found if each.__code__.co_filename.startswith(places)]
