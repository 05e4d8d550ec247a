"""The table of verdicts: what the characterization predicted, and what came of it on other seeds."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib.resources import files
from statistics import median

from lightning_deba.presets import evidence

# The paper's saving of time (arXiv 2511.03809), on CIFAR with batch sizes of a GPU.
PAPER = {
    "mobilenetv3_large_100": "45-62 %",
    "densenet121": "45-62 %",
    "efficientnet_b0": "45-62 %",
    "resnet18": "36-43 %",
    "resnet50": "high variance",
    "vit_tiny_patch16_224": "about 6 % (ViT-B16)",
}


def held_out() -> dict[str, dict[str, list[dict]]]:
    """Returns the runs on other seeds, by model and way."""
    runs = defaultdict(lambda: defaultdict(list))
    text = (files("lightning_deba.presets") / "evidence" / "held_out.jsonl").read_text(encoding="utf-8")
    for line in text.splitlines():
        run = json.loads(line)
        runs[run["model"]][run["way"]].append(run)
    return runs


def saving(ways: dict[str, list[dict]]) -> float:
    """Returns the share of processor time saved, the median over the seeds, each paired with itself."""
    pairs = zip(ways["fixed"], ways["calibrated"], strict=True)
    return median(1 - sum(adapted["processor_seconds"]) / sum(fixed["processor_seconds"]) for fixed, adapted in pairs)


def gained(ways: dict[str, list[dict]]) -> float:
    """Returns the accuracy gained, in points, likewise."""
    pairs = zip(ways["fixed"], ways["calibrated"], strict=True)
    return median(100 * (adapted["accuracy"] - fixed["accuracy"]) for fixed, adapted in pairs)


def table() -> str:
    """Returns the table in Markdown."""
    rows = [
        "| | score | verdict | attainable | predicted | real | accuracy | batch size | paper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, paper in PAPER.items():
        found, ways = evidence(model), held_out()[model]
        word, sizes = found.verdict, " / ".join(str(run["batch_sizes"][-1]) for run in ways["calibrated"])
        shares = " | ".join(f"{100 * share:.0f} %" for share in (word.attainable, word.saving, saving(ways)))
        rows.append(
            f"| {model} | {found.profile.score:.2f} | {word.word} | {shares} | {gained(ways):+.1f} | 16 to {sizes} "
            f"| {paper} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
