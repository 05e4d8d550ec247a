"""Every configuration is trained with, as a user would: laid over others on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lightning_deba import DEBA, BatchSizeScheduler, Hold, read_history
from lightning_deba.characterization import Characterization
from lightning_deba.cli import main
from lightning_deba.cli.training import TrainingCLI
from tests.datasets import write_cifar, write_fashion_mnist

CONFIGS = Path(__file__).parents[1] / "configs"
QUIET = [
    *["--trainer.accelerator", "cpu", "--threads", "1"],
    *["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"],
]
TINY = ["--model.model_name", "test_resnet"]
FOUR = ["--data.batch_size", "4", "--data.eval_batch_size", "4"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fit(*words: str) -> TrainingCLI:
    """Trains; words that end in .yaml are files in `configs/`."""
    files = [arg for word in words if word.endswith(".yaml") for arg in ("--config", str(CONFIGS / word))]
    return TrainingCLI(["fit", *files, *QUIET, *(word for word in words if not word.endswith(".yaml"))])


def scheduler_of(cli: TrainingCLI) -> BatchSizeScheduler:
    (scheduler,) = (callback for callback in cli.trainer.callbacks if isinstance(callback, BatchSizeScheduler))
    return scheduler


def names(folder: str) -> set[str]:
    return {path.stem for path in (CONFIGS / folder).glob("*.yaml")}


MODELS = {  # file: architecture in timm, preset, millions of parameters
    "resnet18": ("resnet18", "resnet_shallow", 11.2),
    "resnet50": ("resnet50", "resnet_deep", 23.5),
    "densenet121": ("densenet121", "densenet", 7.0),
    "efficientnet_b0": ("efficientnet_b0", "efficientnet", 4.0),
    "mobilenetv3": ("mobilenetv3_large_100", "mobilenet", 4.2),
    "mobilenetv3_small": ("mobilenetv3_small_100", "mobilenet", 1.5),
    "vit_b16": ("vit_base_patch16_224", "vit", 85.2),
    "vit_tiny": ("vit_tiny_patch16_224", "vit", 5.4),
}
DATA = {"digits": (10, 1), "fashion_mnist": (10, 1), "cifar10": (10, 3), "cifar100": (100, 3)}  # classes, channels


def test_every_file_is_trained_with_here():
    assert names("model") == set(MODELS)
    assert names("data") == set(DATA)
    assert names(".") == {"quickstart", "deba", "fixed", "fashion_small", "characterize"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_one_step_with_its_preset(name):
    architecture, preset, millions = MODELS[name]
    cli = fit("deba.yaml", f"model/{name}.yaml", *FOUR, "--trainer.fast_dev_run", "1")
    assert cli.trainer.global_step == 1
    assert cli.model.model.pretrained_cfg["architecture"] == architecture
    assert scheduler_of(cli).preset.name == preset
    assert sum(p.numel() for p in cli.model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)
    if preset == "vit":
        assert cli.model.model.patch_embed.num_patches == 64
    (group,) = cli.trainer.optimizers[0].param_groups
    assert group["lr"] == yaml.safe_load((CONFIGS / "model" / f"{name}.yaml").read_text())["model"]["init_args"]["lr"]


@pytest.mark.parametrize("name", DATA)
def test_data_are_trained_on_for_an_epoch(name, tmp_path, monkeypatch):
    if name == "fashion_mnist":
        write_fashion_mnist(tmp_path)
    elif name != "digits":
        write_cifar(tmp_path, DATA[name][0], monkeypatch)
    samples = ["--data.train_samples", "40", "--data.val_samples", "20", "--data.data_dir", str(tmp_path)]
    cli = fit("deba.yaml", f"data/{name}.yaml", *TINY, *samples, "--trainer.max_epochs", "1")
    assert (cli.model.hparams.num_classes, cli.model.hparams.in_chans) == DATA[name]
    assert cli.datamodule.augment == (name != "digits")
    (record,) = read_history(cli.trainer.log_dir).history
    assert record.samples == 40
    assert record.batch_size == (32 if name == "digits" else 64)


def test_the_baseline_holds_and_deba_decides_by_the_preset():
    small = ["--data.train_samples", "40", "--data.val_samples", "20", "--trainer.max_epochs", "1"]
    fixed, deba = (scheduler_of(fit(f"{name}.yaml", *TINY, *small)) for name in ("fixed", "deba"))
    assert fixed.policy == Hold()
    assert (deba.policy, deba.preset.name) == (None, "resnet_shallow")
    assert fixed.decisions[0].reason == "fixed batch size"
    assert isinstance(deba.preset.policy, DEBA)


def test_the_baseline_differs_from_deba_in_the_policy_alone():
    fixed, deba = (yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in ("fixed", "deba"))
    (scheduler,) = fixed["trainer"]["callbacks"]
    assert scheduler.pop("init_args") == {"policy": {"class_path": "lightning_deba.Hold"}}
    assert fixed == deba


def test_a_later_file_goes_over_an_earlier_one_and_words_over_both():
    small = ["--data.train_samples", "40", "--data.val_samples", "20", "--trainer.max_epochs", "1"]
    cli = fit("quickstart.yaml", "fixed.yaml", *TINY, *small, "--data.batch_size", "20")
    assert scheduler_of(cli).policy == Hold()
    assert [record.batch_size for record in scheduler_of(cli).history] == [20]
    assert cli.model.lr == 0.05


def test_the_small_comparison_starts_as_the_readme_says(tmp_path):
    write_fashion_mnist(tmp_path)
    small = ["--data.train_samples", "40", "--data.val_samples", "20", "--data.data_dir", str(tmp_path)]
    files = ["deba.yaml", "model/mobilenetv3_small.yaml", "data/fashion_mnist.yaml", "fashion_small.yaml"]
    cli = fit(*files, *TINY, *small, "--trainer.max_epochs", "1")
    (record,) = read_history(cli.trainer.log_dir).history
    assert (record.batch_size, record.samples, record.learning_rate) == (32, 40, 0.05)
    assert not cli.datamodule.augment


def test_a_characterization_takes_a_model_from_another_file():
    files = ["--config", str(CONFIGS / "characterize.yaml"), "--config", str(CONFIGS / "model" / "resnet18.yaml")]
    small = ["--data.train_samples", "40", "--epochs", "8", "--seeds", "1", "--batch_sizes", "[16, 32]"]
    assert main(["characterize", *files, *TINY, *small]) == 0
    found = Characterization.read("profile.json")
    assert (found.profile.batch_size, len(found.profile.histories[0])) == (16, 8)
    assert found.profile.histories[0][0].learning_rate == 0.05


def test_the_quickstart_learns_and_changes_the_batch_size():
    # As it stands but for a network that is smaller still.
    cli = fit("quickstart.yaml", *TINY)
    assert scheduler_of(cli).policy == DEBA(cooldown=2)
    history = read_history(cli.trainer.log_dir).history
    assert len(history) == 12
    assert history[0].batch_size == 32
    assert history[-1].batch_size > 48
    assert cli.trainer.callback_metrics["val/accuracy"] > 0.9
    run = json.loads((Path(cli.trainer.log_dir) / "run.json").read_text())
    assert run["policy"]["parameters"]["cooldown"] == 2
