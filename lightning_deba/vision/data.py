"""Small real data sets as datamodules."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import datasets

from lightning_deba.vision.images import Batch, ImageDataset, as_it_is, balanced_order, read_idx


class ImageDataModule(LightningDataModule):
    """Serves a labelled set of images; a subclass says which, in its `load`.

    Validation images are taken out of the training set; test images are the test set. Both are the same for
    every `train_samples`. The batch size is read whenever the training loader is built, so it may be changed
    and the loader reloaded.

    Args:
        batch_size: Images in a training batch, on each device.
        data_dir: Folder of the data set. Where it is not there it is downloaded to there.
        image_size: Height and width that images are scaled to.
        train_samples: Number of training images, as many of each class as can be. All by default.
        val_samples: Number of validation images, likewise. A tenth of the training set by default.
        augment: Whether training images are shifted by up to an eighth and, where the data set allows it, mirrored.
        num_workers: Processes that make batches; 0 for none beside the training.
        persistent_workers: Whether they live on from one epoch to the next.
        seed: Seed of the choice of images. The order of training is left to the global seed.
        eval_batch_size: Images in a batch for validation and test.

    Raises:
        ValueError: If a number cannot be right, or there are not as many images.

    Attributes:
        num_classes: Number of classes.
        in_chans: Channels of an image.
    """

    num_classes: ClassVar[int]
    in_chans: ClassVar[int]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    mirror: ClassVar[bool] = True

    def __init__(
        self,
        batch_size: int = 64,
        *,
        data_dir: str | Path = "data",
        image_size: int = 32,
        train_samples: int | None = None,
        val_samples: int | None = None,
        augment: bool = False,
        num_workers: int = 0,
        persistent_workers: bool = False,
        seed: int = 0,
        eval_batch_size: int = 500,
    ) -> None:
        super().__init__()
        counts = {
            "batch_size": batch_size,
            "image_size": image_size,
            "train_samples": train_samples,
            "val_samples": val_samples,
            "eval_batch_size": eval_batch_size,
        }
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"`{name}` must be 1 or more, got {count}.")
        if num_workers < 0:
            raise ValueError(f"`num_workers` must be 0 or more, got {num_workers}.")
        if persistent_workers and num_workers == 0:
            raise ValueError("`persistent_workers` needs workers, got num_workers=0. Write num_workers=1 or more.")
        data_dir = str(data_dir)  # hyper-parameters go into the checkpoint, which holds plain data
        self.save_hyperparameters()
        self.batch_size = batch_size
        self.data_dir = Path(data_dir)
        self.image_size = image_size
        self.train_samples = train_samples
        self.val_samples = val_samples
        self.augment = augment
        self.num_workers = num_workers
        self.persistent_workers = persistent_workers
        self.seed = seed
        self.eval_batch_size = eval_batch_size

    def load(self, train: bool) -> Batch:
        """Reads the images of the training set or the test set, and their labels.

        Args:
            train: Whether the training set is asked for.

        Returns:
            Images of shape (n, channels, height, width) and type uint8, and n labels of type int64.
        """
        raise NotImplementedError(f"`load` of {type(self).__name__} must return images and labels.")

    def prepare_data(self) -> None:
        """Downloads what is not there, in one process for all."""
        self.load(train=True)

    def setup(self, stage: str) -> None:
        """Chooses the images for a stage."""
        if stage == "test":
            self.test_set = self._images(*self.load(train=False))
        elif stage in ("fit", "validate"):
            images, labels = self.load(train=True)
            train, val = self._split(labels)
            self.train_set = self._images(images[train], labels[train], augment=self.augment)
            self.val_set = self._images(images[val], labels[val])

    def _split(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the indices of training and of validation images."""
        n_val = self.val_samples or max(1, len(labels) // 10)
        n_train = self.train_samples or max(1, len(labels) - n_val)
        if n_train + n_val > len(labels):
            raise ValueError(
                f"`train_samples` and `val_samples` must together be no more than the {len(labels)} images "
                f"of the training set, got {n_train} and {n_val}."
            )
        order = balanced_order(labels, self.seed)
        return order[n_val : n_val + n_train], order[:n_val]

    def _images(self, images: Tensor, labels: Tensor, augment: bool = False) -> ImageDataset:
        return ImageDataset(
            images, labels, self.image_size, mean=self.mean, std=self.std, augment=augment, mirror=self.mirror
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        """Returns a loader with the present `batch_size`."""
        return self._loader(self.train_set, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the validation images."""
        return self._loader(self.val_set, self.eval_batch_size)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test images."""
        return self._loader(self.test_set, self.eval_batch_size)

    def _loader(self, images: ImageDataset, batch_size: int, shuffle: bool = False) -> DataLoader[Batch]:
        return DataLoader(
            images,
            batch_size=batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.persistent_workers,
            pin_memory=torch.cuda.is_available(),
            collate_fn=as_it_is,
        )


class DigitsDataModule(ImageDataModule):
    """The handwritten digits that come with scikit-learn: 1,797 grey images of 8 x 8 pixels, 10 classes.

    Nothing is downloaded and `data_dir` is not used. There is no test set of their own, so a fifth of each
    class is set apart for one, the same for every `seed`.

    Example:
        >>> from lightning_deba.vision import DigitsDataModule
        >>> data = DigitsDataModule(batch_size=16)
        >>> data.setup("fit")
        >>> images, labels = next(iter(data.train_dataloader()))
        >>> images.shape, labels.shape
        (torch.Size([16, 1, 32, 32]), torch.Size([16]))
    """

    num_classes = 10
    in_chans = 1
    mean = (0.3053,)
    std = (0.3760,)
    mirror = False  # the mirror image of a digit is none

    def load(self, train: bool) -> Batch:
        """Reads the images from scikit-learn."""
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise ImportError("The digits come with scikit-learn: pip install 'lightning-deba[demo]'") from error
        digits = load_digits()
        images = torch.from_numpy(digits.images / 16 * 255).round().to(torch.uint8)[:, None]
        labels = torch.from_numpy(digits.target).long()
        order = balanced_order(labels, seed=0)
        chosen = order[360:] if train else order[:360]
        return images[chosen], labels[chosen]


class FashionMNISTDataModule(ImageDataModule):
    """Fashion-MNIST: 70,000 grey images of clothing, 28 x 28 pixels, 10 classes.

    `data_dir` may also be a folder that holds the four ``idx`` files themselves, gzipped as they are
    published, such as the ``/usr/share/datasets/fashion-mnist`` of Debian's package ``dataset-fashion-mnist``.
    """

    num_classes = 10
    in_chans = 1
    mean = (0.2860,)
    std = (0.3530,)

    def load(self, train: bool) -> Batch:
        """Reads the images from the idx files in `data_dir`, else from torchvision's data set."""
        part = "train" if train else "t10k"
        images, labels = (self.data_dir / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        if images.is_file() and labels.is_file():
            return read_idx(images)[:, None], read_idx(labels).long()
        return _from_torchvision("FashionMNIST", self.data_dir, train)


class CIFAR10DataModule(ImageDataModule):
    """CIFAR-10: 60,000 colour images of 32 x 32 pixels, 10 classes."""

    num_classes = 10
    in_chans = 3
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)

    def load(self, train: bool) -> Batch:
        """Reads the images with torchvision."""
        return _from_torchvision("CIFAR10", self.data_dir, train)


class CIFAR100DataModule(ImageDataModule):
    """CIFAR-100: 60,000 colour images of 32 x 32 pixels, 100 classes."""

    num_classes = 100
    in_chans = 3
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)

    def load(self, train: bool) -> Batch:
        """Reads the images with torchvision."""
        return _from_torchvision("CIFAR100", self.data_dir, train)


def _from_torchvision(name: str, data_dir: Path, train: bool) -> Batch:
    """Reads a data set of torchvision, which downloads it where it is not there yet."""
    try:
        found = getattr(datasets, name)(data_dir, train=train, download=True)
    except (OSError, RuntimeError) as error:
        raise FileNotFoundError(
            f"{name} is not in `data_dir` '{data_dir}' and could not be downloaded ({' '.join(str(error).split())}). "
            f"Give {_WHAT_TO_GIVE[name]} as `data_dir`."
        ) from error
    images = torch.as_tensor(found.data)
    images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2).contiguous()
    return images, torch.as_tensor(found.targets)


_WHAT_TO_GIVE = {
    "FashionMNIST": "a folder that holds its four idx .gz files, such as Debian's /usr/share/datasets/fashion-mnist,",
    "CIFAR10": "a folder that holds `cifar-10-batches-py`, unpacked,",
    "CIFAR100": "a folder that holds `cifar-100-python`, unpacked,",
}
