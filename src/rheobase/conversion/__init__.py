"""From any traceable `nn.Module` to an `SNN`: `inspect`, `prepare`, `convert`.

Capture traces a copy of the model, lowering turns each call into operations by `rules`, and `convert` gets a
neuron for every site from the method.
"""

from rheobase.conversion.capture import capture, lower
from rheobase.conversion.conversion import DEFAULT_METHOD, convert
from rheobase.conversion.coverage import Coverage, inspect
from rheobase.conversion.refusals import Refusal, refuse_unknown
from rheobase.conversion.tracing import CaptureError
from rheobase.conversion.trainable import prepare
from rheobase.conversion.unwrap import copy_model

__all__ = [
    "DEFAULT_METHOD",
    "CaptureError",
    "Coverage",
    "Refusal",
    "capture",
    "convert",
    "copy_model",
    "inspect",
    "lower",
    "prepare",
    "refuse_unknown",
]
