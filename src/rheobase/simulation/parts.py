"""The parts of a batch: on a CPU threads share them, and each runs its own from the first step to the last.

No result depends on the parts, except in the profile `fast`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rheobase.kernels import share
from rheobase.simulation.counters import Counters
from rheobase.simulation.engine import ChunkedRun
from rheobase.simulation.job import Job

Outcome = tuple[Tensor, Tensor, Tensor]


def run_parts(
    job: Job, x: Tensor, samples: int, first_sample: int, start_counting: Callable[[], Counters]
) -> tuple[list[Outcome], Counters]:
    """Run a batch: what `ChunkedRun.run` returns for each part, and what was counted.

    Args:
        job: What to run.
        x: The inputs.
        samples: The samples of a part.
        first_sample: The number of the first input in its dataset.
        start_counting: Makes counters.
    """
    parts = torch.split(x, samples)

    def run(first: int, last: int) -> tuple[list[Outcome], Counters]:
        with torch.inference_mode(False):  # the caller may change what was counted
            counters = start_counting()
        numbers = range(first, last)
        return [
            ChunkedRun(job, parts[i], first_sample + i * samples, counters).run() for i in numbers
        ], counters

    if x.device.type != "cpu":
        return run(0, len(parts))
    if job.in_order:
        return share(lambda *_: run(0, len(parts)), 1)[0]
    shared = share(run, len(parts))
    counters = shared[0][1]
    for _, others in shared[1:]:
        counters.add(others)
    return [outcome for outcomes, _ in shared for outcome in outcomes], counters
