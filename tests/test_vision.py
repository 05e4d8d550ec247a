from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.cli import ReduceLROnPlateau
from lightning.pytorch.utilities.parsing import lightning_setattr
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_deba import BatchSizeScheduler
from lightning_deba.vision import (
    CIFAR10DataModule,
    CIFAR100DataModule,
    DigitsDataModule,
    FashionMNISTDataModule,
    ImageClassifier,
    ImageDataModule,
)
from lightning_deba.vision.images import ImageDataset, balanced_order, read_idx, shifted
from tests.datasets import write_cifar, write_fashion_mnist, write_idx
from tests.runs import Sizes, trainer_of

TINY = "test_resnet"  # timm's own model for tests


def tiny_classifier(**arguments) -> ImageClassifier:
    return ImageClassifier(TINY, num_classes=10, in_chans=1, **arguments)


def tiny_digits(**arguments) -> DigitsDataModule:
    return DigitsDataModule(**{"batch_size": 20, "train_samples": 60, "val_samples": 20, "image_size": 16, **arguments})


def whole(images: ImageDataset) -> tuple[Tensor, Tensor]:
    return images.__getitems__(list(range(len(images))))


def keys(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


# The classifier


def test_default_optimizer_is_sgd_with_the_settings_that_the_docstring_names():
    (group,) = tiny_classifier(lr=0.2).configure_optimizers().param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.2, 0.9, 5e-4)
    assert tiny_classifier().configure_optimizers().param_groups[0]["lr"] == 0.05


def test_optimizer_and_scheduler_can_be_chosen():
    model = tiny_classifier(
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.003),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1),
    )
    trainer_of([], max_epochs=2).fit(model, datamodule=tiny_digits())
    optimizer = model.optimizers(use_pl_optimizer=False)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.003 * 0.1**2)  # stepped once an epoch


@pytest.mark.parametrize(
    ("scheduler", "monitor"),
    [
        (lambda optimizer: ReduceLROnPlateau(optimizer, monitor="val/accuracy", mode="max"), "val/accuracy"),
        (torch.optim.lr_scheduler.ReduceLROnPlateau, "val/loss"),
    ],
)
def test_a_scheduler_on_a_plateau_watches_what_it_is_told(scheduler, monitor):
    model = tiny_classifier(lr_scheduler=scheduler)
    assert model.configure_optimizers()["lr_scheduler"]["monitor"] == monitor
    trainer_of([], max_epochs=1).fit(model, datamodule=tiny_digits())


def test_a_learning_rate_beside_an_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"`lr` belongs to the default optimizer, got lr=0.1 and an `optimizer`"):
        tiny_classifier(lr=0.1, optimizer=torch.optim.Adam)


@pytest.mark.parametrize(
    ("name", "message"),
    [("resnet_18", r"got 'resnet_18'. Did you mean 'resnet18'"), ("qqqqqq", r"`timm.list_models\(\)` lists them")],
)
def test_an_unknown_model_is_refused_and_close_names_are_told(name, message):
    with pytest.raises(ValueError, match=message):
        ImageClassifier(name)


def test_a_name_with_its_tag_is_a_model():
    model = ImageClassifier("resnet10t.c3_in1k", num_classes=7)
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_model_arguments_reach_the_model():
    model = ImageClassifier("vit_tiny_patch16_224", 10, 3, model_args={"img_size": 32, "patch_size": 4, "depth": 1})
    assert model.model.patch_embed.num_patches == 64
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_what_is_logged():
    model, data, trainer = tiny_classifier(), tiny_digits(), trainer_of([], max_epochs=1)
    trainer.fit(model, datamodule=data)
    assert set(trainer.callback_metrics) == {"train/loss", "val/loss", "val/accuracy"}
    (tested,) = trainer.test(model, datamodule=data, verbose=False)
    assert set(tested) == {"test/loss", "test/accuracy"}


def test_logged_accuracy_and_loss_are_those_of_all_images():
    model, data = tiny_classifier().eval(), tiny_digits()
    data.setup("test")
    images, _ = whole(data.test_set)
    with torch.no_grad():
        logits = model(images)
    # The labels are such that classes are unequal, and so are batches: a mean of their means would differ.
    labels = logits.argmax(1)
    labels[:90] = 0
    loader = DataLoader(TensorDataset(images, labels), batch_size=250)
    (tested,) = trainer_of([]).test(model, dataloaders=loader, verbose=False)
    accuracy = (logits.argmax(1) == labels).float().mean().item()
    assert 0.7 < accuracy < 1
    assert tested["test/accuracy"] == pytest.approx(accuracy)
    assert tested["test/loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-4)


def test_a_checkpoint_is_plain_data_and_restores_model_and_data(tmp_path):
    model = tiny_classifier(lr=0.01, lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    trainer = trainer_of([], max_epochs=1)
    trainer.fit(model, datamodule=tiny_digits(data_dir=tmp_path))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    torch.load(tmp_path / "model.ckpt", weights_only=True)
    images = torch.randn(3, 1, 16, 16)
    loaded = ImageClassifier.load_from_checkpoint(tmp_path / "model.ckpt")
    assert torch.equal(loaded.eval()(images), model.eval()(images))
    assert loaded.lr == 0.01
    assert DigitsDataModule.load_from_checkpoint(tmp_path / "model.ckpt").train_samples == 60


# The datamodules


def test_digits_are_divided_without_overlap_and_in_balance():
    data = DigitsDataModule()
    data.setup("fit")
    data.setup("test")
    parts = (data.train_set, data.val_set, data.test_set)
    assert [len(part) for part in parts] == [1294, 143, 360]
    for part in parts:
        counts = torch.bincount(part.labels, minlength=10)
        assert counts.max() - counts.min() <= max(2, len(part) // 100)
    # Of the 1,797 images none is there twice.
    assert len(set.union(*(keys(part.images) for part in parts))) == 1797


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    images, labels = DigitsDataModule().load(train=True)
    assert (images.dtype, images.shape, labels.dtype) == (torch.uint8, (1437, 1, 8, 8), torch.int64)
    digits = load_digits()
    known = {image.astype(np.uint8).tobytes(): label for image, label in zip(digits.images, digits.target, strict=True)}
    back = (images.double() / 255 * 16).round().to(torch.uint8)
    assert all(known[image.numpy().tobytes()] == label for image, label in zip(back, labels.tolist(), strict=True))


def test_the_test_set_is_the_same_for_every_seed_and_the_choice_is_not():
    first, second = tiny_digits(seed=0), tiny_digits(seed=1)
    for data in (first, second):
        data.setup("fit")
        data.setup("test")
    assert torch.equal(first.test_set.images, second.test_set.images)
    assert keys(first.train_set.images) != keys(second.train_set.images)


def test_validation_images_do_not_depend_on_how_many_train():
    few, many = tiny_digits(train_samples=30), tiny_digits(train_samples=300)
    for data in (few, many):
        data.setup("fit")
    assert torch.equal(few.val_set.images, many.val_set.images)
    assert keys(few.train_set.images) < keys(many.train_set.images)
    assert torch.bincount(many.train_set.labels).tolist() == [30] * 10


def test_all_that_validation_leaves_is_trained_on():
    data = DigitsDataModule(val_samples=437)
    data.setup("fit")
    assert len(data.train_set) == 1000


def test_the_batch_size_is_read_when_the_loader_is_built():
    data = tiny_digits(batch_size=20)
    data.setup("fit")
    assert data.train_dataloader().batch_size == 20
    data.batch_size = 30
    assert data.train_dataloader().batch_size == 30
    assert data.val_dataloader().batch_size == 500


def test_the_batch_size_is_a_hyper_parameter_too():
    data = tiny_digits(batch_size=20)
    assert data.hparams.batch_size == 20
    trainer = Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    trainer.datamodule = data  # type: ignore[attr-defined]
    model = tiny_classifier()
    model.trainer = trainer
    lightning_setattr(model, "batch_size", 40)
    assert (data.batch_size, data.hparams.batch_size) == (40, 40)


@pytest.mark.parametrize("actuator", ["reload", "in_place"])
def test_the_scheduler_changes_the_batch_size(actuator, tmp_path):
    scheduler = BatchSizeScheduler(Sizes({0: 30, 1: 15}), actuator=actuator, min_batch_size=1)
    trainer_of([scheduler], tmp_path).fit(tiny_classifier(), datamodule=tiny_digits())
    sizes = [(record.batch_size, record.optimizer_steps, record.samples) for record in scheduler.history]
    assert sizes == [(20, 3, 60), (30, 2, 60), (15, 4, 60)]


def test_workers_give_the_same_batches():
    data, beside = tiny_digits(), tiny_digits(num_workers=1, persistent_workers=True)
    for module in (data, beside):
        module.setup("validate")
    for (images, labels), (others, other_labels) in zip(data.val_dataloader(), beside.val_dataloader(), strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, other_labels)


def test_only_training_images_are_augmented():
    data = tiny_digits(augment=True)
    data.setup("fit")
    data.setup("test")
    assert not torch.equal(whole(data.train_set)[0], whole(data.train_set)[0])
    assert torch.equal(whole(data.val_set)[0], whole(data.val_set)[0])
    assert torch.equal(whole(data.test_set)[0], whole(data.test_set)[0])


def test_digits_are_not_mirrored_and_clothes_are():
    assert (DigitsDataModule.mirror, FashionMNISTDataModule.mirror, CIFAR10DataModule.mirror) == (False, True, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be 1 or more, got 0"),
        ({"image_size": 0}, "`image_size` must be 1 or more, got 0"),
        ({"train_samples": 0}, "`train_samples` must be 1 or more, got 0"),
        ({"val_samples": -5}, "`val_samples` must be 1 or more, got -5"),
        ({"eval_batch_size": 0}, "`eval_batch_size` must be 1 or more, got 0"),
        ({"num_workers": -1}, "`num_workers` must be 0 or more, got -1"),
        ({"persistent_workers": True}, "`persistent_workers` needs workers, got num_workers=0"),
    ],
)
def test_numbers_that_cannot_be_right_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        DigitsDataModule(**arguments)


@pytest.mark.parametrize(
    ("arguments", "got"),
    [
        ({"train_samples": 1338, "val_samples": 100}, "got 1338 and 100"),
        ({"train_samples": 9999}, "got 9999 and 143"),
        ({"val_samples": 1437}, "got 1 and 1437"),
    ],
)
def test_more_images_than_there_are_are_refused(arguments, got):
    with pytest.raises(ValueError, match=rf"no more than the 1437 images of the training set, {got}"):
        DigitsDataModule(**arguments).setup("fit")


def test_without_scikit_learn_the_digits_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning-deba\[demo\]'"):
        DigitsDataModule().prepare_data()


def test_fashion_mnist_from_the_folder_of_its_files(tmp_path):
    data = FashionMNISTDataModule(data_dir=write_fashion_mnist(tmp_path), batch_size=8, val_samples=10)
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (50, 10, 20)
    assert torch.equal(data.train_set.images[:, 0, 0, 0].long(), data.train_set.labels)
    images, labels = next(iter(data.train_dataloader()))
    assert (images.shape, labels.shape) == ((8, 1, 32, 32), (8,))


@pytest.mark.parametrize(("data_class", "classes"), [(CIFAR10DataModule, 10), (CIFAR100DataModule, 100)])
def test_cifar_from_the_folder_of_its_files(tmp_path, monkeypatch, data_class, classes):
    data = data_class(data_dir=write_cifar(tmp_path, classes, monkeypatch), batch_size=8)
    data.prepare_data()
    data.setup("fit")
    assert len(data.train_set) + len(data.val_set) == (1000 if classes == 10 else 200)
    assert (data.num_classes, data.in_chans) == (classes, 3)
    first_pixels = data.train_set.images[:, :, 0, 0].long()
    assert torch.equal(first_pixels[:, 0], data.train_set.labels)
    assert first_pixels[:, 1:].unique(dim=0).tolist() == [[1, 2]]
    assert next(iter(data.train_dataloader()))[0].shape == (8, 3, 32, 32)


@pytest.mark.parametrize(
    ("data_class", "remedy"),
    [
        (FashionMNISTDataModule, "its four idx .gz files, such as Debian's /usr/share/datasets/fashion-mnist"),
        (CIFAR10DataModule, "cifar-10-batches-py"),
        (CIFAR100DataModule, "cifar-100-python"),
    ],
)
def test_a_failed_download_names_the_folder_to_give(tmp_path, monkeypatch, data_class, remedy):
    from torchvision.datasets import CIFAR10, FashionMNIST

    def fails(self):
        raise OSError("no\n network")

    monkeypatch.setattr(CIFAR10, "download", fails)
    monkeypatch.setattr(FashionMNIST, "download", fails)
    with pytest.raises(FileNotFoundError, match=r"could not be downloaded \(no network\)") as caught:
        data_class(data_dir=tmp_path).prepare_data()
    assert remedy in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_data_set_of_ones_own_needs_a_load_and_little_else():
    class Noise(ImageDataModule):
        num_classes, in_chans, mean, std = 3, 2, (0.5, 0.5), (0.25, 0.25)

        def load(self, train: bool) -> tuple[Tensor, Tensor]:
            return torch.randint(256, (40, 2, 9, 9), dtype=torch.uint8), torch.arange(40) % 3

    data = Noise(batch_size=4)
    data.setup("fit")
    assert next(iter(data.train_dataloader()))[0].shape == (4, 2, 32, 32)
    assert isinstance(data, LightningDataModule)


# Images


def dataset(n: int = 6, size: int = 8, **arguments) -> ImageDataset:
    images = torch.randint(256, (n, 2, size, size), dtype=torch.uint8)
    settings = {"image_size": size, "mean": (0.5, 0.25), "std": (0.5, 2.0), **arguments}
    return ImageDataset(images, torch.arange(n), **settings)


def test_images_are_scaled_to_mean_and_deviation():
    data = dataset()
    image, label = data[3]
    raw = data.images[3].double() / 255
    assert torch.allclose(image[0].double(), (raw[0] - 0.5) / 0.5, atol=1e-6)
    assert torch.allclose(image[1].double(), (raw[1] - 0.25) / 2.0, atol=1e-6)
    assert label == 3


@pytest.mark.parametrize(
    ("data_class", "tolerance"),
    [(DigitsDataModule, 0.01), (FashionMNISTDataModule, 0.01)],
)
def test_constants_are_those_of_the_data(data_class, tolerance):
    debian = Path("/usr/share/datasets/fashion-mnist")
    if data_class is FashionMNISTDataModule and not debian.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    images, _ = data_class(data_dir=debian).load(train=True)
    values = images.double() / 255
    assert values.mean().item() == pytest.approx(data_class.mean[0], abs=tolerance)
    assert values.std().item() == pytest.approx(data_class.std[0], abs=tolerance)


def test_a_batch_is_its_images():
    data = dataset(image_size=12)
    images, labels = data.__getitems__([4, 1])
    assert torch.equal(images, torch.stack([data[4][0], data[1][0]]))
    assert labels.tolist() == [4, 1]


def test_loaders_read_whole_batches(monkeypatch):
    def one_by_one(self, index):
        raise AssertionError("the loader reads image by image")

    data = tiny_digits()
    data.setup("fit")
    monkeypatch.setattr(ImageDataset, "__getitem__", one_by_one)
    assert sum(len(labels) for _, labels in data.train_dataloader()) == 60


@pytest.mark.parametrize("mirror", [False, True])
def test_a_shifted_image_is_a_window_of_the_padded_one(mirror):
    torch.manual_seed(0)
    images = torch.rand(64, 2, 16, 16) + 0.1
    padded = F.pad(images, (2, 2, 2, 2))
    seen = []
    for image, wide in zip(shifted(images, mirror), padded, strict=True):
        windows = {
            (top, left, flip): wide[:, top : top + 16, left : left + 16].flip([2] * flip)
            for top in range(5)
            for left in range(5)
            for flip in (0, 1)
        }
        (found,) = (place for place, window in windows.items() if torch.equal(window, image))
        seen.append(found)
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))
    assert {flip for _, _, flip in seen} == ({0, 1} if mirror else {0})


def test_any_slice_of_a_balanced_order_is_balanced():
    labels = torch.arange(70) % 7
    order = balanced_order(labels, seed=3)
    assert sorted(order.tolist()) == list(range(70))
    for start in range(70):
        for end in range(start + 1, 71):
            counts = torch.bincount(labels[order[start:end]], minlength=7)
            assert counts.max() - counts.min() <= (1 if start == 0 else 2)
    assert not torch.equal(order, balanced_order(labels, seed=4))


def test_an_unequal_class_is_used_up_and_the_others_go_on():
    labels = torch.tensor([0] * 20 + [1] * 3)
    assert labels[balanced_order(labels, seed=0)][:6].sum() == 3
    assert labels[balanced_order(labels, seed=0)][6:].sum() == 0


def test_an_idx_file_is_read(tmp_path):
    array = np.arange(2 * 3 * 300).reshape(2, 3, 300) % 256
    write_idx(tmp_path / "a.gz", array)
    assert torch.equal(read_idx(tmp_path / "a.gz"), torch.from_numpy(array).to(torch.uint8))


def test_a_file_that_is_not_idx_is_refused_by_name(tmp_path):
    path = tmp_path / "a.gz"
    write_idx(path, np.zeros((4, 4)))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"a.gz' is not a whole gzipped idx file of bytes"):
        read_idx(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"a.gz' is not a whole"):
        read_idx(path)
    write_idx(path, np.zeros((4, 4)), kind=13)
    with pytest.raises(ValueError, match="its numbers are of type 13, not bytes"):
        read_idx(path)


def test_the_room_is_entered_without_timm_and_scikit_learn():
    script = (
        "import sys, lightning_deba; assert 'lightning_deba.vision' not in sys.modules; import lightning_deba.vision;"
        "print([name for name in ('timm', 'sklearn.datasets') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_training_learns():
    torch.manual_seed(0)
    model, data = tiny_classifier(lr=0.05), DigitsDataModule(batch_size=32, train_samples=600, val_samples=200)
    trainer = trainer_of([], max_epochs=4)
    trainer.fit(model, datamodule=data)
    assert trainer.callback_metrics["val/accuracy"] > 0.8
    assert math.isfinite(trainer.callback_metrics["train/loss"])
