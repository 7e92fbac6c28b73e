"""What a model must be before it is traced."""

import inspect

import torch
from torch import nn

from rheobase.conversion.tracing import CaptureError
from rheobase.conversion.unwrap import has_hooks
from rheobase.io import all_finite


@torch.no_grad()
def check_model(model: nn.Module) -> None:
    """Refuse models whose parts or weights cannot be captured."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"its part {name!r} is" if name else "it is"
            raise CaptureError(
                f"the model could not be traced: {where} TorchScript\n"
                "  -> pass the Python model that it was made from"
            )
    _check_quantisation(model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise CaptureError(
                f"the model's {name} has no shape yet, as a lazy layer makes it\n"
                "  -> call the model once with an input, then load or train its weights"
            )
        if tensor.is_meta:
            raise CaptureError(
                f"the model's {name} is on the meta device, without values\n"
                "  -> model.to_empty(device='cpu'), then load its weights"
            )
        if not tensor.is_floating_point():
            continue
        if tensor.dtype not in (torch.float32, torch.float64):
            raise CaptureError(
                f"the model's {name} has dtype {tensor.dtype}, but membranes need float32 or float64\n"
                "  -> pass model.float(), and inputs of float32"
            )
        mask = not isinstance(tensor, nn.Parameter) and tensor.isneginf()  # of logits
        if not all_finite(tensor) and not (tensor.isfinite() | mask).all():
            raise ValueError(
                f"the model's {name} has NaN or infinite values: train it again or load other weights"
            )


def _check_quantisation(model: nn.Module) -> None:
    """Refuse what torch's quantisation leaves before and after fake quantisation, which can be converted."""
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    for name, module in model.named_modules():
        kind, origin = type(module).__name__, type(module).__module__.removeprefix("torch.ao.")
        found = ""
        remedy = (
            "pass the float model that it was made from; or, if that was prepared by prepare_qat, what "
            "prepare_qat returned, after torch.ao.quantization.disable_observer"
        )
        if origin.startswith(("nn.quantized.", "nn.intrinsic.quantized.")) and kind != "FloatFunctional":
            found = "computes in integers of its own, as torch.ao.quantization.convert makes it"
        elif origin == "quantization.observer" and hasattr(module, "min_val"):
            if "FakeQuantize" not in type(parents.get(module)).__name__:
                found = "only observes, as torch.ao.quantization.prepare inserts it"
                remedy = "pass the model before that, with calibration data, or use prepare_qat"
            elif (torch.as_tensor(module.min_val) > torch.as_tensor(module.max_val)).any():
                found, remedy = "has seen no data", "run the prepared model on training inputs first"
        if found:
            raise CaptureError(f"the model's {name} ({kind}) {found}\n  -> {remedy}")


def check_call(model: nn.Module) -> None:
    """Refuse models that hooks change or that do not take one input."""
    if has_hooks(model):
        raise CaptureError(
            "the model has a forward hook, which may change what it computes\n"
            "  -> remove the hook: call .remove() on what register_forward_hook returned"
        )
    parameters = inspect.signature(model.forward).parameters.values()
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in several]
    if not any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters):
        raise CaptureError(
            f"the model's forward{inspect.signature(model.forward)} takes no input by its position\n"
            "  -> wrap the model so that it takes one tensor: forward(self, x)"
        )
    if len(needed) > 1:
        raise CaptureError(
            f"the model takes {len(needed)} inputs ({', '.join(needed)}), but a spiking network takes one\n"
            "  -> wrap the model so that it takes one tensor"
        )
