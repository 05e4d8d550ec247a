from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# A deadline for an example is a timed assertion; times are for tests/benchmarks.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _one_seed_and_one_thread():
    torch.manual_seed(0)
    torch.set_num_threads(1)
