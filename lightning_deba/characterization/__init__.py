"""What a fixed-batch run tells before the time is spent: a profile, thresholds that fit it, and a verdict.

The paper (DEBA, arXiv 2511.03809) calibrates its thresholds from such a baseline characterization and finds that it
predicts which architectures gain. Its formulas are not public: those here are this project's own.
"""

from lightning_deba.characterization.calibration import calibrate, simulate, threshold_intervals
from lightning_deba.characterization.characterization import Characterization
from lightning_deba.characterization.profile import StabilityProfile
from lightning_deba.characterization.throughput import ThroughputCurve
from lightning_deba.characterization.verdict import Verdict, verdict

__all__ = [
    "Characterization",
    "StabilityProfile",
    "ThroughputCurve",
    "Verdict",
    "calibrate",
    "simulate",
    "threshold_intervals",
    "verdict",
]
