"""What people ran into when they changed the batch size: the right answer, exactly."""

from __future__ import annotations

from itertools import product

import pytest

from tests.runs import Epoch, run

CHANGES = {
    "grow": ({0: 16}, [(8, 8), (16, 4), (16, 4)]),
    "shrink": ({0: 4}, [(8, 8), (4, 16), (4, 16)]),
    "both": ({0: 16, 1: 4}, [(8, 8), (16, 4), (4, 16)]),
}
WORKERS = {
    "0": {},
    "2": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
ACTUATORS = [("in_place", "fit"), *product(["reload", "in_place"], ["module", "datamodule"])]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(("actuator", "source"), ACTUATORS)
@pytest.mark.parametrize("change", CHANGES)
def test_no_sample_and_no_validation_is_lost(change, actuator, source, workers, tmp_path):
    after, expected = CHANGES[change]
    _, scheduler, probe, _ = run(after, tmp_path, source=source, actuator=actuator, loader_args=WORKERS[workers])
    assert probe.epochs == [Epoch(t, size, batches, 64) for t, (size, batches) in enumerate(expected)]
    assert probe.validations == [0, 1, 2]
    assert probe.training_batches == [batches for _, batches in expected]
    assert all(sorted(seen) == list(range(64)) for seen in probe.seen.values())
    assert [(r.batch_size, r.optimizer_steps, r.samples) for r in scheduler.history] == [
        (size, batches, 64) for size, batches in expected
    ]
