"""A GAN that learns eight Gaussians on a ring: manual optimization, two optimizers."""

import math

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.utils.data import DataLoader, TensorDataset

from lightning_deba import BatchSizeScheduler


def ring(n=1000):
    """`n` points around eight centres on the unit circle."""
    angles = torch.randint(8, (n,)) * (math.pi / 4)
    return torch.stack([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(n, 2)


def mlp(n_in, n_out):
    return nn.Sequential(
        nn.Linear(n_in, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, n_out)
    )


class GAN(LightningModule):
    def __init__(self, latent_dim=8, lr=2e-4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = mlp(latent_dim, 2)
        self.discriminator = mlp(2, 1)

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, batch_idx):
        (real,) = batch
        opt_g, opt_d = self.optimizers()
        fake = self(torch.randn(len(real), self.hparams.latent_dim))

        # The discriminator tells real points from generated ones.
        says_real, says_fake = self.discriminator(real), self.discriminator(fake.detach())
        d_loss = (bce(says_real, torch.ones_like(says_real)) + bce(says_fake, torch.zeros_like(says_fake))) / 2
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()

        # The generator wants its points to pass for real.
        says_fake = self.discriminator(fake)
        g_loss = bce(says_fake, torch.ones_like(says_fake))
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()

        self.log_dict({"g_loss": g_loss, "d_loss": d_loss}, on_step=False, on_epoch=True, prog_bar=True)
        return d_loss

    def configure_optimizers(self):
        lr, betas = self.hparams.lr, (0.5, 0.999)
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=betas)
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=betas)
        return opt_g, opt_d


def main():
    seed_everything(1)
    loader = DataLoader(TensorDataset(ring()), batch_size=32, shuffle=True)
    scheduler = BatchSizeScheduler(preset="generic", optimizer_index=1)  # the discriminator's
    trainer = Trainer(max_epochs=24, accelerator="cpu", callbacks=[scheduler])
    trainer.fit(GAN(), loader)


if __name__ == "__main__":
    main()
