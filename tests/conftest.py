from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# A deadline for an example is a timed assertion; times are for tests/benchmarks. The same examples come each time, so
# that a test tells of the change at hand; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("same")


@pytest.fixture(autouse=True)
def _one_seed_and_one_thread():
    torch.manual_seed(0)
    torch.set_num_threads(1)
