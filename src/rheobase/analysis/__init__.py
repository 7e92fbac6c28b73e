"""Judging a converted network: `evaluate`, `diagnose`, `verify`, `compare`, `advise`, `fit_exit`, `bench`."""

from rheobase.analysis.advice import advise
from rheobase.analysis.benchmark import Timing, bench
from rheobase.analysis.comparison import STOPPED, Comparison, Row, compare
from rheobase.analysis.costs import Latency, Silence, latency_of
from rheobase.analysis.diagnosis import Diagnosis, diagnose
from rheobase.analysis.diagnosis.histograms import Histogram, histogram_activations
from rheobase.analysis.diagnosis.parts import PARTS, SiteDiagnosis
from rheobase.analysis.diagnosis.start_sweep import sweep_starts
from rheobase.analysis.diagnosis.traces import NEURONS, Trace, spread, trace
from rheobase.analysis.energy import PAPER, ann_joules, count_operations, snn_joules
from rheobase.analysis.evaluation import Evaluation, StepResult, accuracy, evaluate, score
from rheobase.analysis.exits import compare_exit, fit_exit, least_loss
from rheobase.analysis.metrics import Measure, Metric
from rheobase.analysis.trials import Advice, Budget
from rheobase.analysis.verification import Verification, VerificationError, verify

__all__ = [
    "NEURONS",
    "PAPER",
    "PARTS",
    "STOPPED",
    "Advice",
    "Budget",
    "Comparison",
    "Diagnosis",
    "Evaluation",
    "Histogram",
    "Latency",
    "Measure",
    "Metric",
    "Row",
    "Silence",
    "SiteDiagnosis",
    "StepResult",
    "Timing",
    "Trace",
    "Verification",
    "VerificationError",
    "accuracy",
    "advise",
    "ann_joules",
    "bench",
    "compare",
    "compare_exit",
    "count_operations",
    "diagnose",
    "evaluate",
    "fit_exit",
    "histogram_activations",
    "latency_of",
    "least_loss",
    "score",
    "snn_joules",
    "spread",
    "sweep_starts",
    "trace",
    "verify",
]
