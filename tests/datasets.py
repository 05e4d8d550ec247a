"""Tiny data sets in the file formats of the true ones, for tests that have no network."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest


def write_idx(path: Path, array: np.ndarray, kind: int = 8) -> None:
    """Writes a gzipped idx file."""
    header = bytes([0, 0, kind, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def write_fashion_mnist(folder: Path, train: int = 60, test: int = 20) -> Path:
    """Writes the four files of Fashion-MNIST; the label of an image is its first pixel."""
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("t10k", test)):
        images = rng.integers(256, size=(count, 28, 28))
        labels = np.arange(count) % 10
        images[:, 0, 0] = labels
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    return folder


def write_cifar(folder: Path, classes: int, monkeypatch: pytest.MonkeyPatch, per_file: int = 200) -> Path:
    """Writes CIFAR-10 or CIFAR-100, and has torchvision not compare them with the true one's checksums.

    The first pixel of an image is (label, 1, 2) in red, green and blue.
    """
    from torchvision.datasets import CIFAR10, CIFAR100, cifar

    source = {10: CIFAR10, 100: CIFAR100}[classes]
    base = folder / source.base_folder
    base.mkdir()
    rng = np.random.default_rng(0)
    for name, _ in source.train_list + source.test_list:
        images = rng.integers(256, size=(per_file, 3, 32, 32), dtype=np.uint8)
        labels = np.arange(per_file) % classes
        images[:, :, 0, 0] = np.stack([labels, np.ones(per_file), 2 * np.ones(per_file)], axis=1)
        entry = {"data": images.reshape(per_file, -1), ("labels" if classes == 10 else "fine_labels"): labels.tolist()}
        (base / name).write_bytes(pickle.dumps(entry))
    (base / source.meta["filename"]).write_bytes(pickle.dumps({source.meta["key"]: list(map(str, range(classes)))}))
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: Path(path).is_file())
    return folder
