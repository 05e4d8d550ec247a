"""The README's table of the comparison, and the stored runs that it is made from.

lightning-deba compare --config configs/compare/paper.yaml -o comparison/     and strong.yaml, ablations.yaml
python -m tests.evidence.comparison --collect comparison/     into lightning_deba/comparison/evidence
python -m tests.evidence.comparison                           prints the table
python -m tests.evidence.comparison --page comparison.html    and writes all of it as a page
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_deba.comparison.markdown import markdown_table
from lightning_deba.comparison.page import write_comparison_report
from lightning_deba.comparison.runs import load_runs, shipped_runs, write_runs

BASELINE = "fixed_16"
ARMS = ("deba", "noise_scale", "goodput", "goodput_at_one_rate")
SHIPPED = Path(__file__).parents[2] / "lightning_deba" / "comparison" / "evidence" / "fashion_mnist.jsonl"


def table() -> str:
    """Returns the table in Markdown, of those arms that have been run."""
    runs = shipped_runs()
    there = {run.arm for run in runs}
    return markdown_table(runs, BASELINE, [arm for arm in ARMS if arm in there])


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
