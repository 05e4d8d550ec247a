"""Image classification to try it all on: any timm model, and small real data sets."""

from lightning_deba.vision.classifier import ImageClassifier
from lightning_deba.vision.data import (
    CIFAR10DataModule,
    CIFAR100DataModule,
    DigitsDataModule,
    FashionMNISTDataModule,
    ImageDataModule,
)

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "DigitsDataModule",
    "FashionMNISTDataModule",
    "ImageClassifier",
    "ImageDataModule",
]
