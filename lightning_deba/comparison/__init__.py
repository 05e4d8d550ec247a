"""Policies compared with each other: a grid of arms, models and seeds, each run a plain Lightning fit.

`compare` runs what of a `Grid` has not been run yet and returns what was found; `measure` turns the stored results into
a row a run, and `summarize` into medians with intervals, paired by seed with a baseline arm.
"""

from lightning_deba.comparison.engine import Comparison, Engine, LocalEngine, Outcome, compare, execute
from lightning_deba.comparison.grid import Arm, Grid, Job
from lightning_deba.comparison.measures import (
    Interval,
    Row,
    Run,
    Summary,
    interval_of_median,
    load_runs,
    measure,
    summarize,
    verdict,
    write_csv,
)
from lightning_deba.comparison.rivals import BSScheduler

__all__ = [
    "Arm",
    "BSScheduler",
    "Comparison",
    "Engine",
    "Grid",
    "Interval",
    "Job",
    "LocalEngine",
    "Outcome",
    "Row",
    "Run",
    "Summary",
    "compare",
    "execute",
    "interval_of_median",
    "load_runs",
    "measure",
    "summarize",
    "verdict",
    "write_csv",
]
