"""A small network that finds discs and squares in noisy images, with a datamodule of its own."""

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_deba import DEBA, BatchSizeScheduler


def shapes(n, size=24):
    """Noisy images of one disc (class 1) and one square (class 2) each, and their masks."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    masks = torch.zeros(n, size, size, dtype=torch.long)
    for mask in masks:
        (y, x), radius = torch.randint(size, (2,)), torch.randint(3, 6, ())
        mask[(rows - y) ** 2 + (columns - x) ** 2 <= radius**2] = 1
        (y, x), half = torch.randint(size, (2,)), torch.randint(2, 5, ())
        mask[((rows - y).abs() <= half) & ((columns - x).abs() <= half)] = 2
    images = (masks > 0).float() + 0.3 * torch.randn(n, size, size)
    return TensorDataset(images[:, None], masks)


class ShapesDataModule(LightningDataModule):
    def __init__(self, batch_size=16):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        self.train_set, self.val_set = shapes(240), shapes(60)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=60)


def block(n_in, n_out, stride=1):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, stride, padding=1), nn.BatchNorm2d(n_out), nn.ReLU())


class Segmenter(LightningModule):
    def __init__(self, width=8, classes=3):
        super().__init__()
        self.net = nn.Sequential(
            block(1, width),
            block(width, 2 * width, stride=2),
            block(2 * width, 2 * width),
            nn.Upsample(scale_factor=2),
            block(2 * width, width),
            nn.Conv2d(width, classes, 1),
        )

    def training_step(self, batch, batch_idx):
        images, masks = batch
        loss = cross_entropy(self.net(images), masks)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, masks = batch
        found = self.net(images).argmax(dim=1)
        shape = masks > 0
        self.log("val_accuracy", (found == masks)[shape].float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    seed_everything(1)
    trainer = Trainer(max_epochs=16, accelerator="cpu", callbacks=[BatchSizeScheduler(policy=DEBA(cooldown=4))])
    trainer.fit(Segmenter(), datamodule=ShapesDataModule())


if __name__ == "__main__":
    main()
