"""What the harness of a comparison costs: `pytest tests/benchmarks --benchmark-enable`.

The ordinary suite runs each once, without a bound.
"""

from __future__ import annotations

import json
import statistics
import time

import pytest
from lightning.pytorch import Trainer, seed_everything

from lightning_deba import BatchSizeScheduler, Hold
from lightning_deba.comparison import Grid, Run, execute, load_runs, measure, summarize
from lightning_deba.vision import DigitsDataModule, ImageClassifier

MODEL = {"model_name": "resnet18", "in_chans": 1, "lr": 0.01}


@pytest.fixture
def enabled(benchmark):
    """Whether times are to be taken and bounds to be kept."""
    return benchmark.enabled


def test_a_job_costs_at_most_two_percent_more_than_the_same_fit(benchmark, enabled, tmp_path):
    """In processor seconds, which a machine with other work tells truly, of fits of some ten seconds."""
    images = {"train_samples": 800 if enabled else 32, "val_samples": 200 if enabled else 20, "batch_size": 16}
    epochs = 3 if enabled else 1
    arm = {"batch_size": 16, "policy": {"class_path": "lightning_deba.Hold"}}
    rounds = iter(range(99))

    def job() -> None:
        grid = Grid.from_dict(
            {
                "models": {"resnet18": {"class_path": "lightning_deba.vision.ImageClassifier", "init_args": MODEL}},
                "data": {"class_path": "lightning_deba.vision.DigitsDataModule", "init_args": images},
                "arms": {"fixed": arm},
                "seeds": 1,
                "epochs": epochs,
                "trainer_args": {"accelerator": "cpu"},
            }
        )
        (one,) = grid.jobs()
        assert not execute(one, tmp_path / f"job-{next(rounds)}").error

    def fit() -> None:
        seed_everything(0, verbose=False)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            num_sanity_val_steps=0,
            callbacks=[BatchSizeScheduler(Hold())],
            default_root_dir=tmp_path / f"fit-{next(rounds)}",
            **quiet,
        )
        model, data = ImageClassifier(**MODEL), DigitsDataModule(**images)
        trainer.fit(model, datamodule=data)
        trainer.test(model, datamodule=data, verbose=False)

    fits, jobs = [], []
    for _ in range(6 if enabled else 1):  # the first is that in which all is imported
        fits.append(_processor_seconds(fit))
        jobs.append(_processor_seconds(job))
    more = statistics.median(jobs[1:] or jobs) / statistics.median(fits[1:] or fits) - 1
    benchmark.extra_info["more than the fit"] = f"{more:.2%}"
    benchmark.extra_info["fit"] = f"{statistics.median(fits):.1f} s"
    benchmark.pedantic(job, rounds=1)
    if enabled:
        assert more < 0.02


@pytest.mark.parametrize("seeds", [3, 5, 20])
def test_a_thousand_runs_are_read_and_summarized_in_ten_seconds(seeds, benchmark, enabled, tmp_path):
    arms, epochs = 1000 // (5 * seeds) if enabled else 2, 100
    for model in "abcde":
        for arm in range(arms):
            for seed in range(seeds):
                _store(tmp_path, model, str(arm), seed, epochs)

    def look() -> int:
        return len(summarize(measure(load_runs(tmp_path), "0"), "0"))

    seconds = _processor_seconds(look)
    benchmark.pedantic(look, rounds=1)
    assert len(load_runs(tmp_path)) == 5 * arms * seeds
    if enabled:
        assert seconds < 10


def _store(root, model: str, arm: str, seed: int, epochs: int) -> None:
    folder = root / "runs" / model / arm / f"seed-{seed}"
    folder.mkdir(parents=True)
    run = Run(
        model=model,
        arm=arm,
        seed=seed,
        seconds=[1.0 + (seed + int(arm)) % 7 / 100] * epochs,
        processor_seconds=[1.0 + seed % 5 / 100] * epochs,
        samples=[1000] * epochs,
        steps=[10] * epochs,
        batch_sizes=[100] * epochs,
        accuracies=[(epoch + seed % 3) / (epochs + 3) for epoch in range(epochs)],
        test_accuracy=0.5 + seed / 100,
    )
    (folder / "result.json").write_text(json.dumps(run.to_dict()))


def _processor_seconds(function) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start
