"""Any timm model as a LightningModule."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import torch.nn.functional as F  # noqa: N812
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torchmetrics.classification import MulticlassAccuracy


class ImageClassifier(LightningModule):
    """Trains a timm model with cross-entropy.

    It logs ``train/loss``, ``val/loss``, ``val/accuracy``, ``test/loss`` and ``test/accuracy``, the accuracy
    being the share of all images that are classified rightly.

    Args:
        model_name: Name of a timm model, such as "resnet18" or "hf-hub:timm/resnet18.a1_in1k".
        num_classes: Number of classes.
        in_chans: Channels of an image.
        pretrained: Whether to start from timm's weights, which are downloaded.
        model_args: Further arguments of that model, such as ``{"img_size": 32, "patch_size": 4}`` for a ViT.
        lr: Learning rate of the default optimizer, 0.05 if not given. An `optimizer` brings its own.
        optimizer: From the parameters to an optimizer. SGD with momentum 0.9 and weight decay 5e-4 by default.
        lr_scheduler: From the optimizer to a learning-rate scheduler, which is stepped once an epoch. None by
            default.

    Raises:
        ValueError: If timm has no such model, or both `lr` and `optimizer` are given.

    Example:
        >>> import torch
        >>> from lightning_deba.vision import ImageClassifier
        >>> model = ImageClassifier("mobilenetv3_small_050", num_classes=10, in_chans=1)
        >>> model.eval()(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        model_name: str,
        num_classes: int = 10,
        in_chans: int = 3,
        *,
        pretrained: bool = False,
        model_args: dict[str, Any] | None = None,
        lr: float | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
    ) -> None:
        super().__init__()
        if lr is not None and optimizer is not None:
            raise ValueError(
                f"`lr` belongs to the default optimizer, got lr={lr} and an `optimizer`. "
                "Give the learning rate to the `optimizer` alone."
            )
        # The two callables stay out of the checkpoint, which holds plain data.
        self.save_hyperparameters(ignore=["optimizer", "lr_scheduler"])
        self.lr = 0.05 if lr is None else lr
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.model = _timm_model(
            model_name, pretrained=pretrained, num_classes=num_classes, in_chans=in_chans, **(model_args or {})
        )
        self.accuracy = nn.ModuleDict(
            {stage: MulticlassAccuracy(num_classes, average="micro") for stage in ("val", "test")}
        )

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits, one row an image."""
        logits: Tensor = self.model(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Returns the loss, and logs it."""
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train/loss", loss, on_step=False, on_epoch=True, prog_bar=True, batch_size=len(labels))
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy."""
        self._evaluate(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy."""
        self._evaluate(batch, "test")

    def _evaluate(self, batch: tuple[Tensor, Tensor], stage: str) -> None:
        images, labels = batch
        logits = self(images)
        accuracy: MulticlassAccuracy = self.accuracy[stage]  # type: ignore[assignment]
        accuracy(logits, labels)
        self.log(f"{stage}/loss", F.cross_entropy(logits, labels), batch_size=len(labels))
        self.log(f"{stage}/accuracy", accuracy, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Builds the optimizer, and the scheduler where there is one."""
        if self.optimizer is None:
            optimizer: Optimizer = SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4)
        else:
            optimizer = self.optimizer(self.parameters())
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        # Only `ReduceLROnPlateau` watches a metric; that of `lightning.pytorch.cli` knows which.
        monitor = getattr(scheduler, "monitor", "val/loss")
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": monitor}}


def _timm_model(model_name: str, **arguments: Any) -> nn.Module:
    """Builds a timm model, or says which names are close where there is none."""
    import timm  # slow to import, and data modules do without

    if ":" not in model_name and not timm.is_model(model_name):
        close = " or ".join(map(repr, get_close_matches(model_name, timm.list_models())))
        raise ValueError(
            f"`model_name` must be a timm model, got {model_name!r}. "
            + (f"Did you mean {close}?" if close else "`timm.list_models()` lists them.")
        )
    model: nn.Module = timm.create_model(model_name, **arguments)
    return model
