"""Images in memory: how they become batches, are chosen, shifted, and read."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import Dataset

Batch = tuple[Tensor, Tensor]
"""Images, or one image, and the labels."""


class ImageDataset(Dataset[Batch]):
    """Images in memory, as bytes, which become floats of mean 0 and standard deviation 1.

    That is done to whole batches: image by image it would cost more than a small model does.

    Args:
        images: Images of shape (n, channels, height, width) and type uint8.
        labels: Their labels.
        image_size: Height and width that images are scaled to.
        mean: Mean of each channel, of values from 0 to 1.
        std: Standard deviation of each channel.
        augment: Whether images are shifted at random.
        mirror: Whether images are then also mirrored, every other one.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        image_size: int,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment: bool = False,
        mirror: bool = False,
    ) -> None:
        self.images = images
        self.labels = labels
        self.image_size = image_size
        self.mean = torch.tensor(mean)[:, None, None]
        self.std = torch.tensor(std)[:, None, None]
        self.augment = augment
        self.mirror = mirror

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        """Returns one image and its label."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: list[int]) -> Batch:
        """Returns a batch; the `DataLoader` asks for it by this name."""
        images = self.images[indices].float() / 255
        if images.shape[-1] != self.image_size:
            images = F.interpolate(images, size=self.image_size, mode="bilinear", antialias=True)
        images = (images - self.mean) / self.std
        return shifted(images, self.mirror) if self.augment else images, self.labels[indices]


def balanced_order(labels: Tensor, seed: int) -> Tensor:
    """Orders indices at random, and so that any slice of the order is balanced.

    In a slice from the start the numbers of each class differ by one at most, in any other by two, until the
    smallest class is used up.

    Example:
        >>> import torch
        >>> from lightning_deba.vision.images import balanced_order
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
        >>> labels[balanced_order(labels, seed=0)].view(4, 2).sum(dim=1)
        tensor([1, 1, 1, 1])
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    one_hot = F.one_hot(labels[shuffled])
    rank_in_class = (one_hot.cumsum(0) * one_hot).sum(1)
    return shuffled[rank_in_class.argsort(stable=True)]


def shifted(images: Tensor, mirror: bool = False) -> Tensor:
    """Shifts each image of a batch at random by up to an eighth of its size, and mirrors every other one.

    What comes in from outside is zero. One gather does both for all images.

    Args:
        images: Images of shape (n, channels, height, width).
        mirror: Whether to mirror.

    Returns:
        Images of the same shape.
    """
    n, channels, height, width = images.shape
    margin = max(1, height // 8)
    rows = torch.randint(2 * margin + 1, (n, 1)) + torch.arange(height)
    columns = torch.randint(2 * margin + 1, (n, 1)) + torch.arange(width)
    if mirror:
        columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
    image, channel = torch.arange(n)[:, None, None, None], torch.arange(channels)[:, None, None]
    return F.pad(images, [margin] * 4)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def read_idx(path: Path) -> Tensor:
    """Reads a gzipped idx file of bytes, the format of MNIST and its successors.

    Its header is two zeros, the type of the numbers (8 for bytes), the number of dimensions, and their sizes
    in four bytes each.

    Raises:
        ValueError: If it is not such a file, or cut short.
    """
    try:
        data = gzip.decompress(path.read_bytes())
        kind, dimensions = data[2], data[3]
        start = 4 + 4 * dimensions
        shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
        if kind != 8:
            raise ValueError(f"its numbers are of type {kind}, not bytes")
        return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(shape)
    except (EOFError, IndexError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"'{path}' is not a whole gzipped idx file of bytes: {error}.") from error


def as_it_is(batch: Any) -> Any:
    """Returns what it gets: the `collate_fn` for a data set whose batches are whole already."""
    return batch
