"""Policies compared with each other: a grid of arms, models and seeds, each run a plain Lightning fit.

`compare` runs what of a `Grid` has not been run yet and returns what was found; `measure` turns the stored results into
a row a run, and `summarize` into medians with intervals, paired by seed with a baseline arm.
"""

from lightning_deba.comparison.cluster import RayEngine
from lightning_deba.comparison.comparison import Comparison, Engine, compare
from lightning_deba.comparison.figures import plot_accuracy, plot_batch_sizes, plot_comparison
from lightning_deba.comparison.gains import Gain, best_fixed, fixed_sizes, gains
from lightning_deba.comparison.grid import Arm, Grid, Job
from lightning_deba.comparison.intervals import Interval, interval_of_median, verdict
from lightning_deba.comparison.job import Outcome, execute
from lightning_deba.comparison.local import LocalEngine
from lightning_deba.comparison.markdown import markdown_table
from lightning_deba.comparison.measures import Row, Summary, measure, summarize, write_csv
from lightning_deba.comparison.page import write_comparison_report
from lightning_deba.comparison.rivals import BSScheduler
from lightning_deba.comparison.runs import Run, load_runs, shipped_runs, write_runs

__all__ = [
    "Arm",
    "BSScheduler",
    "Comparison",
    "Engine",
    "Gain",
    "Grid",
    "Interval",
    "Job",
    "LocalEngine",
    "Outcome",
    "RayEngine",
    "Row",
    "Run",
    "Summary",
    "best_fixed",
    "compare",
    "execute",
    "fixed_sizes",
    "gains",
    "interval_of_median",
    "load_runs",
    "markdown_table",
    "measure",
    "plot_accuracy",
    "plot_batch_sizes",
    "plot_comparison",
    "shipped_runs",
    "summarize",
    "verdict",
    "write_comparison_report",
    "write_csv",
    "write_runs",
]
