"""The rates of the random faults of a run."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """The rate of each fault, per second and broker (or pair of hosts), and its average duration."""

    kill: float
    power_cut: float
    clean_restart: float
    down_s: float
    pause: float
    pause_s: float
    expire: float
    cut: float
    cut_s: float
    reset: float
    slow: float
    slow_s: float
    slow_mean_s: float
    job_mean_s: float
    jump: float
    jump_s: float
    full: float
    failing: float
    trouble_s: float
    lose: float
    lose_s: float
    lose_probability: float
    isolate: float
    isolate_s: float
    fail_all: float
    deafen: float
    depose: float
    damage: float

    @classmethod
    def draw(cls, draw: random.Random) -> Rates:
        """Draw the rates from the seed. Each fault may be left out, so that others occur alone."""

        def rate(most: float) -> float:
            return 0.0 if draw.random() < 0.3 else draw.uniform(most / 10, most)

        return cls(
            kill=rate(0.1),
            power_cut=rate(0.1),
            clean_restart=rate(0.05),
            down_s=draw.uniform(0.1, 10.0),
            pause=rate(0.05),
            pause_s=draw.uniform(0.1, 10.0),
            expire=rate(0.03),
            cut=rate(0.03),
            cut_s=draw.uniform(0.1, 5.0),
            reset=rate(0.05),
            slow=rate(0.05),
            slow_s=draw.uniform(1.0, 10.0),
            slow_mean_s=draw.choice((0.03, 0.1, 0.5)),
            job_mean_s=draw.uniform(0.000_1, 0.02),
            jump=rate(0.05),
            jump_s=draw.choice((0.1, 2.0, 30.0)),
            full=rate(0.02),
            failing=rate(0.02),
            trouble_s=draw.uniform(0.5, 10.0),
            lose=rate(0.4),
            lose_s=draw.uniform(0.5, 5.0),
            lose_probability=draw.uniform(0.02, 0.5),
            isolate=rate(0.03),
            isolate_s=draw.uniform(1.0, 10.0),
            fail_all=rate(0.05),
            deafen=rate(0.05),
            depose=rate(0.05),
            damage=rate(0.5),
        )
