"""Runs without a Trainer for all policies: a world measures an epoch at a batch size, and the size follows."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_deba.records import EpochRecord


@dataclass(frozen=True)
class World:
    """A training of which everything is known; by default nothing in it changes."""

    square: float = 1.0  # |G|^2
    covariance: float = 200.0  # tr(Sigma)
    growth: float = 1.0  # of the noise scale, an epoch
    loss: float = 0.5
    rate: float = 0.1
    samples: int = 50_000
    overhead: float = 0.02  # seconds a step
    per_sample: float = 0.0001
    error: float | None = None

    def epoch(self, epoch, size):
        steps = -(-self.samples // size)
        return EpochRecord(
            epoch=epoch,
            batch_size=size,
            micro_batch_size=size,
            optimizer_steps=steps,
            samples=self.samples,
            seconds=steps * self.overhead + self.samples * self.per_sample,
            loss=self.loss,
            gradient_norm=(self.square + self.covariance / size) ** 0.5,
            component_variance=1e-8,
            learning_rate=self.rate,
            gradient_squared=self.square,
            gradient_covariance=self.covariance * self.growth**epoch,
            noise_scale_error=self.error,
        )

    def run(self, policy, epochs, start=32, largest=1 << 14):
        """Returns the records and the decisions."""
        history, decisions, size = [], [], start
        for epoch in range(epochs):
            history.append(self.epoch(epoch, size))
            decisions.append(policy(tuple(history)))
            size = min(decisions[-1].batch_size, largest)
        return history, decisions

    def sizes(self, policy, epochs, start=32):
        """Returns the batch sizes that the epochs had."""
        return [record.batch_size for record in self.run(policy, epochs, start)[0]]


def flat(sizes):
    """Writes a list of sizes as pairs of a size and how many epochs in a row had it."""
    pairs = []
    for size in sizes:
        if pairs and pairs[-1][0] == size:
            pairs[-1] = (size, pairs[-1][1] + 1)
        else:
            pairs.append((size, 1))
    return pairs
