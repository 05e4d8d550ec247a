"""The runs behind the shipped presets and the table of verdicts. Stopped anywhere, a command goes on where it was.

    python -m tests.evidence baseline resnet18 0 1 2    fixed batch of 16, three seeds
    python -m tests.evidence held_out resnet18 3 4      fixed and calibrated, side by side, on other seeds
    python -m tests.evidence throughput resnet18        seconds of a step by batch size
    python -m tests.evidence collect                    into lightning_deba/presets/evidence

Runs go to ``--runs`` (by default ``evidence_runs``). About two hours on two cores for everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from lightning.pytorch import Callback

from lightning_deba import BatchSizeScheduler, Hold, read_history
from lightning_deba.baseline import fit_once, run_baseline
from lightning_deba.characterization import StabilityProfile, calibrate
from lightning_deba.records import to_columns
from lightning_deba.vision import FashionMNISTDataModule, ImageClassifier

EPOCHS = 25
MODELS = (
    "resnet18",
    "resnet50",
    "densenet121",
    "efficientnet_b0",
    "mobilenetv3_small_100",
    "mobilenetv3_large_100",
    "vit_tiny_patch16_224",
)
SHIPPED = Path(__file__).parents[2] / "lightning_deba" / "presets" / "evidence"


def module(name: str) -> ImageClassifier:
    of_a_vit = {"img_size": 32, "patch_size": 4} if name.startswith("vit") else None
    return ImageClassifier(name, num_classes=10, in_chans=1, lr=0.01, model_args=of_a_vit)


def data(folder: str) -> FashionMNISTDataModule:
    return FashionMNISTDataModule(batch_size=16, data_dir=folder, train_samples=800, val_samples=1000)


class ProcessorTime(Callback):
    """Notes the processor seconds of each training epoch, which do not count what others do on the machine."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer, pl_module) -> None:
        self._began = time.process_time()

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.seconds.append(time.process_time() - self._began)

    def state_dict(self):
        return {"seconds": self.seconds}

    def load_state_dict(self, state) -> None:
        self.seconds = state["seconds"]


def baseline(arguments: argparse.Namespace) -> None:
    run_baseline(
        lambda: module(arguments.model),
        data(arguments.data_dir),
        epochs=EPOCHS,
        seeds=arguments.seeds,
        directory=arguments.runs / arguments.model,
    )


def held_out(arguments: argparse.Namespace) -> None:
    """Trains fixed and calibrated at the same time, so that what else the machine does meets both alike."""
    for seed in arguments.seeds:
        command = [sys.executable, "-m", "tests.evidence", "one", arguments.model, str(seed)]
        where = ["--runs", str(arguments.runs), "--data_dir", arguments.data_dir]
        ways = [[*command, "--way", way, *where] for way in ("fixed", "calibrated")]
        for process in [subprocess.Popen(way) for way in ways]:
            process.wait()


def one(arguments: argparse.Namespace) -> None:
    (seed,) = arguments.seeds
    directory = arguments.runs / "held_out" / f"{arguments.model}-{arguments.way}-{seed}"
    result = directory / "result.json"
    if result.exists():
        return
    policy = Hold() if arguments.way == "fixed" else calibrate(profile_of(arguments.runs, arguments.model))
    clock, scheduler, datamodule = ProcessorTime(), BatchSizeScheduler(policy), data(arguments.data_dir)
    kept = []

    def build():
        kept.append(module(arguments.model))
        return kept[0]

    history = fit_once(build, datamodule, scheduler, epochs=EPOCHS, seed=seed, directory=directory, callbacks=[clock])
    model = kept[0].eval()
    with torch.no_grad():
        hits = sum(float((model(x).argmax(1) == y).sum()) for x, y in datamodule.val_dataloader())
    found = {
        "model": arguments.model,
        "way": arguments.way,
        "seed": seed,
        "accuracy": hits / 1000,
        "processor_seconds": [round(seconds, 3) for seconds in clock.seconds],
        "batch_sizes": [record.batch_size for record in history],
        "losses": [round(record.loss, 4) for record in history],
    }
    result.write_text(json.dumps(found))


def profile_of(runs: Path, model: str) -> StabilityProfile:
    paths = sorted((runs / model).glob("seed-*/history.jsonl"))
    return StabilityProfile.from_histories([read_history(path).history for path in paths], model)


def throughput(arguments: argparse.Namespace) -> None:
    from lightning_deba.throughput import measure_throughput

    curve = measure_throughput(
        module(arguments.model),
        data(arguments.data_dir),
        batch_sizes=(16, 32, 64, 128, 256),
        clock=time.process_time,
    )
    (arguments.runs / "throughput").mkdir(parents=True, exist_ok=True)
    (arguments.runs / "throughput" / f"{arguments.model}.json").write_text(json.dumps(curve.to_dict()))
    print(curve)


def collect(arguments: argparse.Namespace) -> None:
    """Writes the compact evidence that is shipped."""
    SHIPPED.mkdir(exist_ok=True)
    for model in MODELS:
        profile = profile_of(arguments.runs, model)
        curve = json.loads((arguments.runs / "throughput" / f"{model}.json").read_text())
        rounded = [
            {name: [_rounded(value) for value in column] for name, column in to_columns(run).items() if any(column)}
            for run in profile.histories
        ]
        about = {
            "data": "800 images of Fashion-MNIST at 32x32",
            "optimizer": "SGD 0.01, momentum 0.9, weight decay 5e-4",
            "versions": {name: version(name) for name in ("lightning", "timm", "torch")},
            "command": f"python -m tests.evidence baseline {model} 0 1 2",
        }
        shipped = {"version": 1, "architecture": model, "throughput": curve, "histories": rounded, "about": about}
        (SHIPPED / f"{model}.json").write_text(json.dumps(shipped, separators=(",", ":")) + "\n")
    results = [json.loads(path.read_text()) for path in sorted((arguments.runs / "held_out").glob("*/result.json"))]
    (SHIPPED / "held_out.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results))


def _rounded(value):
    """Six digits: the thresholds have three."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    torch.set_num_threads(1)
    commands = {f.__name__: f for f in (baseline, held_out, one, throughput, collect)}
    parser = argparse.ArgumentParser(prog="python -m tests.evidence", description=__doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--way", choices=("fixed", "calibrated"))
    parser.add_argument("--runs", type=Path, default=Path("evidence_runs"))
    parser.add_argument("--data_dir", default="/usr/share/datasets/fashion-mnist")
    arguments = parser.parse_args()
    commands[arguments.command](arguments)
