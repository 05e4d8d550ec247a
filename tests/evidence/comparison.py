"""The README's table of the comparison, and the stored runs that it is made from.

lightning-deba compare --config configs/compare/paper.yaml -o comparison/     and strong.yaml, ablations.yaml
lightning-deba compare --config configs/compare/rates.yaml -o rates/
python -m tests.evidence.comparison --collect comparison/     into lightning_deba/comparison/evidence
python -m tests.evidence.comparison --collect_rates rates/    likewise
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
ARMS = ("deba", "noise_scale", "goodput_at_one_rate", "goodput", "goodput_sqrt")
GOODPUT = ARMS[2:]
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
RATES = {"rate_001": 0.001, "rate_003": 0.003, "rate_01": 0.01}
SHIPPED = Path(__file__).parents[2] / "lightning_deba" / "comparison" / "evidence" / "fashion_mnist.jsonl"
SHIPPED_RATES = SHIPPED.with_name("fashion_mnist_rates.jsonl")


def table() -> str:
    """Returns the table in Markdown, of those arms that have been run, and sentences on what it does not show."""
    runs = shipped_runs()
    there = {run.arm for run in runs}
    laid_out = markdown_table(runs, BASELINE, [arm for arm in ARMS if arm in there])
    return "\n".join(
        [laid_out, "", *(f"- {told}" for told in (*rates(load_runs(SHIPPED_RATES)), *to_target(runs), *others(runs)))]
    )


def rates(runs: Sequence[Run]) -> Iterator[str]:
    """Tells how accurate the baseline is with each learning rate, of which it has the best."""
    found = {(run.model, run.arm): run.test_accuracy for run in runs}
    told = []
    for model in sorted({model for model, _ in found if all((model, arm) in found for arm in RATES)}):
        accuracies = [f"{found[model, arm]:.0%}".replace("%", " %") for arm in RATES]
        told.append(f"{model} {', '.join(accuracies)}")
    yield f"`{BASELINE}` with a rate of {', '.join(map(str, RATES.values()))} (one seed): {'; '.join(told)}."


def to_target(runs: Sequence[Run], policies: Sequence[str] = GOODPUT, seeds: int = 3) -> Iterator[str]:
    """Tells how long policies take to the validation accuracy at which every run of the baseline ends.

    They are compared with the fixed size that is fastest there, by medians over the seeds of those that have as many.
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
        if len(fixed) > 1 and any(policy in found for policy in policies):
            best = min(fixed, key=lambda arm: fixed[arm])
            ratios = [_ratio(found.get(policy), fixed[best]) for policy in policies]
            told.append(f"{model} ({target:.1%}, `{best}`) {' / '.join(ratios)}".replace("%", " %"))
    if told:
        names = " / ".join(f"`{policy}`" for policy in policies)
        what = f"Processor time of {names} to where `{BASELINE}` ends, over that of the fixed size fastest there"
        yield f"{what}: {'; '.join(told)}."


def _ratio(seconds: float | None, of: float) -> str:
    if seconds is None:
        return "–"
    return f"{seconds / of:.2f}" if math.isfinite(seconds) else "never"


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
    parser.add_argument("--collect_rates", type=Path, help="likewise, of rates.yaml")
    parser.add_argument("--page", type=Path, help="HTML file to write")
    arguments = parser.parse_args()
    if arguments.collect:
        write_runs(load_runs(arguments.collect), SHIPPED)
    if arguments.collect_rates:
        write_runs(load_runs(arguments.collect_rates), SHIPPED_RATES)
    if arguments.page:
        write_comparison_report(shipped_runs(), arguments.page, baseline=BASELINE)
    print(table())
