"""Reviews, good or bad, streamed from a file: an `IterableDataset` without a length, and batches that are padded."""

import random
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset

from lightning_deba import DEBA, BatchSizeScheduler

GOOD = ["great", "lovely", "charming", "clever", "moving"]
BAD = ["dull", "awful", "tedious", "clumsy", "hollow"]
OTHER = ["the", "a", "this", "film", "plot", "cast", "score", "ending", "was", "felt", "seemed", "and", "with", "its"]
VOCABULARY = {word: number for number, word in enumerate(["<pad>", *GOOD, *BAD, *OTHER])}


def write_reviews(path, n=512):
    """Writes a review a line: a label, a tab, and 4 to 20 words, most of whose judgements agree with the label."""
    lines = []
    for _ in range(n):
        label = random.randrange(2)
        words = random.choices(OTHER, k=random.randint(3, 16))
        words += random.choices((BAD, GOOD)[label], k=2) + random.choices(GOOD + BAD, k=random.randint(0, 2))
        random.shuffle(words)
        lines.append(f"{label}\t{' '.join(words)}\n")
    path.write_text("".join(lines))


class Reviews(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path) as file:
            for line in file:
                label, text = line.rstrip("\n").split("\t")
                yield torch.tensor([VOCABULARY[word] for word in text.split()]), int(label)


def pad(samples):
    texts, labels = zip(*samples, strict=True)
    return {"tokens": pad_sequence(texts, batch_first=True), "labels": torch.tensor(labels)}


class TextClassifier(LightningModule):
    def __init__(self, width=16, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(len(VOCABULARY), width, padding_idx=0)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, tokens):
        states, _ = self.rnn(self.embedding(tokens))
        return self.head(states.amax(dim=1))

    def training_step(self, batch, batch_idx):
        loss = cross_entropy(self(batch["tokens"]), batch["labels"])
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def main():
    seed_everything(1)
    path = Path("reviews.tsv")
    write_reviews(path)
    loader = DataLoader(Reviews(path), batch_size=16, collate_fn=pad)
    trainer = Trainer(max_epochs=16, accelerator="cpu", callbacks=[BatchSizeScheduler(policy=DEBA(cooldown=4))])
    trainer.fit(TextClassifier(), loader)


if __name__ == "__main__":
    main()
