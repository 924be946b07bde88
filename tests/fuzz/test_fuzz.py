"""A few thousand broken inputs for every reader of foreign bytes, the same ones each time, and everything that once
broke one. `make fuzz` goes on for longer, with other inputs."""

import random

import pytest

from tools.fuzz import corpus, run_one
from tools.fuzz_targets import TARGETS, Target
from tools.mutation import Mutator

INPUTS = 3_000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_broken_bytes_end_in_the_documented_errors(target: Target) -> None:
    mutator = Mutator(target.seeds(), random.Random(f"make test {target.name}"))
    for _ in range(INPUTS):
        run_one(target, mutator.next())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_and_what_once_broke_a_reader(target: Target) -> None:
    for data in target.seeds():
        target.run(data)
    for path in corpus(target):
        run_one(target, path.read_bytes())


def test_mutation_is_reproducible() -> None:
    def some() -> list[bytes]:
        mutator = Mutator([bytes(100), b"abc"], random.Random(5))
        return [mutator.next() for _ in range(500)]

    assert some() == some()
    assert len(set(some())) > 400
