"""The README's table of the comparison, and the stored runs that it is made from.

lightning-deba compare --config configs/compare/paper.yaml -o comparison/     and strong.yaml, ablations.yaml
python -m tests.evidence.comparison --collect comparison/     into lightning_deba/comparison/evidence
python -m tests.evidence.comparison                           prints the table
python -m tests.evidence.comparison --page comparison.html    and writes all of it as a page
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from lightning_deba.comparison.gains import Gain, fixed_sizes, gains
from lightning_deba.comparison.markdown import markdown_gain, markdown_table
from lightning_deba.comparison.measures import measure
from lightning_deba.comparison.page import write_comparison_report
from lightning_deba.comparison.runs import Run, load_runs, shipped_runs, write_runs

BASELINE = "fixed_16"
ARMS = ("deba", "noise_scale", "goodput", "goodput_at_one_rate")
OTHERS = {
    "Other ways": {
        "cosine at 16": "fixed_16_cosine",
        "OneCycle at 16": "fixed_16_onecycle",
        "StepBS": "step",
        "plateau": "plateau",
        "AdaBatch": "adabatch",
        "accumulation": "accumulate",
    },
    "DEBA with": {
        "cooldown 0": "deba_cooldown_0",
        "cooldown 2": "deba_cooldown_2",
        "cooldown 10": "deba_cooldown_10",
        "all of the history": "deba_full_history",
        "the variance alone": "deba_confidence_alone",
        "the variations alone": "deba_stability_alone",
    },
}
"""What the sentences below the table tell of: arms by what they are called there."""
SHIPPED = Path(__file__).parents[2] / "lightning_deba" / "comparison" / "evidence" / "fashion_mnist.jsonl"


def table() -> str:
    """Returns the table in Markdown, of those arms that have been run, and sentences on what it does not show."""
    runs = shipped_runs()
    there = {run.arm for run in runs}
    laid_out = markdown_table(runs, BASELINE, [arm for arm in ARMS if arm in there])
    return "\n".join([laid_out, "", *(f"- {told}" for told in (*to_target(runs), *others(runs)))])


def to_target(runs: Sequence[Run], policy: str = "goodput", seeds: int = 3) -> Iterator[str]:
    """Tells how long a policy takes to the validation accuracy at which every run of the baseline ends.

    It is compared with the fixed size that is fastest there, by medians over the seeds of those that have as many.
    """
    times: dict[tuple[str, str], list[float]] = {}
    targets: dict[str, float] = {}
    for row in measure(runs, BASELINE):
        times.setdefault((row.model, row.arm), []).append(row.processor_seconds_to_target)
        targets[row.model] = row.target
    told = []
    for model, target in targets.items():
        found = {arm: median(some) for (name, arm), some in times.items() if name == model and len(some) >= seeds}
        fixed = {arm: seconds for arm, seconds in found.items() if arm in fixed_sizes(runs, model)}
        if policy in found and len(fixed) > 1:
            best = min(fixed, key=lambda arm: fixed[arm])
            ratio = f"{found[policy] / fixed[best]:.2f}" if math.isfinite(found[policy]) else "never"
            told.append(f"{model} ({target:.1%}) {ratio} (`{best}`)".replace("%", " %"))
    if told:
        what = f"Processor time of `{policy}` to where `{BASELINE}` ends, over that of the fixed size fastest there"
        yield f"{what}: {', '.join(told)}."


def others(runs: Sequence[Run]) -> Iterator[str]:
    """Tells what arms that have no column have over the baseline, a sentence a group."""
    found = {(gain.model, gain.arm): gain for gain in gains(measure(runs, BASELINE), BASELINE)}
    for group, arms in OTHERS.items():
        models = sorted({model for model, arm in found if arm in arms.values()})
        if not models:
            continue
        told = [
            f"{name} {' / '.join(_briefly(found.get((model, arm))) for model in models)}" for name, arm in arms.items()
        ]
        yield f"{group} ({' / '.join(models)}): {'; '.join(told)}."


def _briefly(gain: Gain | None) -> str:
    return "–" if gain is None else markdown_gain(gain, intervals=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence.comparison",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--collect", type=Path, help="directory of a comparison whose runs are to be shipped")
    parser.add_argument("--page", type=Path, help="HTML file to write")
    arguments = parser.parse_args()
    if arguments.collect:
        write_runs(load_runs(arguments.collect), SHIPPED)
    if arguments.page:
        write_comparison_report(shipped_runs(), arguments.page, baseline=BASELINE)
    print(table())
