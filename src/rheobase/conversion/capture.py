"""Capture: any traceable network as a graph of operations with named sites.

The caller's model is copied first and never changed. Every call gets an operation of its own, so a ReLU
module used twice is two sites. With an example input the captured network is compared with the model, and a
difference is an error: a network is never converted in part without notice.
"""

import contextlib
import copy
from collections.abc import Collection, Container, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.capture_errors import raise_refusals
from rheobase.conversion.encoders import insert_encoders, layout_of
from rheobase.conversion.lowering import Lowering
from rheobase.conversion.model_checks import check_call, check_model
from rheobase.conversion.nodes import Row
from rheobase.conversion.read_out import compute_on_sums
from rheobase.conversion.rules import read_fake_quantize, rules_with
from rheobase.conversion.spelled_out import recognise
from rheobase.conversion.tracing import CaptureError, calls_functions, export, trace
from rheobase.conversion.unwrap import copy_model, return_answer
from rheobase.io import TOKENS
from rheobase.network import (
    SNN,
    Activation,
    Network,
    Scale,
    Site,
    answer_of,
    find_like,
    fold_scales,
    full_precision,
    has_double,
    require_others,
    run_values,
)

# Samples on which the result is compared with the model, mostly in double precision, which is slow on CPUs.
_CHECKED = 16


def capture(
    model: nn.Module,
    example: Tensor | None = None,
    handles: Sequence[str] = (),
    encodes: bool | None = False,
) -> Network:
    """Capture a copy of a model in evaluation mode.

    Args:
        model: Any network that `torch.fx` can trace. It is not changed.
        example: One batch of inputs. It is needed where a call's meaning depends on shapes; and with its
            first samples the result is checked against the model.
        handles: Names of nonlinearities other than ReLU that become sites too.
        encodes: Whether encoders are put in, as `Method.encodes` says.

    Raises:
        CaptureError: If something in the model cannot become spikes. The message names every such place.
    """
    given = model
    model, example = move_to_double(model, example)
    copied, lowering = lower(model, example, handles)
    raise_refusals(lowering.rows)
    network = assemble(lowering)
    insert_encoders(network, encodes)
    require_sites(network.sites)
    if example is not None:
        require_others(example, network.excluded)
        example = example[:_CHECKED]
        rounds = any(isinstance(m, Activation) and m.grid is not None for m in network.module.modules())
        doubled = _capture_in_double(copied, example, handles) if rounds else None
        _check_equal(*(doubled or (copied, network.module, lowering.left_out, example)))
    if model is not given:
        network.module.to(find_like(given).device)
    return network


def move_to_double(model: nn.Module, example: Tensor | None) -> tuple[nn.Module, Tensor | None]:
    """A model and its input; copies on the CPU if their device has no double precision, as lowering needs."""
    if not isinstance(model, nn.Module) or has_double(find_like(model).device):
        return model, example
    return copy_model(model).cpu(), example.cpu() if isinstance(example, Tensor) else example


def lower(
    model: nn.Module, example: Tensor | None = None, handles: Sequence[str] = ()
) -> tuple[nn.Module, Lowering]:
    """Trace a copy of the model and lower it; refusals are rows of the lowering, not errors."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got an object of type {type(model).__name__}")
    if any(isinstance(module, SNN) for module in model.modules()):
        raise TypeError(
            "the model is converted already (SNN): rheobase.simulate(snn, x, steps) runs it; for another "
            "conversion, pass the network that it was made from"
        )
    check_model(model)
    copied = copy_model(model)
    check_call(copied)
    others = return_answer(copied)
    rules = rules_with(handles)
    traced = _trace(copied, None if example is None else _check_example(example), rules)
    if example is not None:
        _note_shapes(traced, example)
    recognise(traced, rules)
    lowering = Lowering(traced, rules, shapes_known=example is not None)
    lowering.run()
    if "analog" in handles:
        compute_on_sums(lowering)
    if others:
        lowering.rows.append(Row("output", "return", f"logits; left out: {', '.join(others)}"))
    return copied, lowering


def require_sites(sites: Collection[Any]) -> None:
    """Raise an error if there are no sites."""
    if not sites:
        raise CaptureError(
            "the model has no activation, so nothing can become neurons: it must contain at least one ReLU "
            "(nn.ReLU, F.relu, clamp(min=0), ReLU6 …)"
        )


def _trace(model: nn.Module, example: Tensor | None, rules: Container[str]) -> fx.GraphModule:
    """The trace of a model, by `torch.export` where `torch.fx` cannot or stops at functions of others."""
    try:
        traced = trace(model)
    except CaptureError:
        if example is None or (exported := export(model, example)) is None:
            raise
        return exported
    if example is not None and calls_functions(traced, rules):
        return export(model, example) or traced
    return traced


def _check_example(example: Tensor) -> Tensor:
    """Two samples of an example input; the same twice if there is one, to tell the batch from a size of 1."""
    if not isinstance(example, Tensor):
        raise TypeError(f"the example input must be one tensor, got {type(example).__name__}")
    if not example.is_floating_point() and example.dtype not in TOKENS:
        raise TypeError(
            f"the example input must be floating point, got {example.dtype}: normalise images first; for "
            "numbers of tokens, use int64"
        )
    if example.dim() < 2 or example.numel() == 0:
        raise ValueError(f"the example input has shape {tuple(example.shape)}: expected a batch of samples")
    if not example.isfinite().all():
        raise ValueError("the example input has NaN or infinite values")
    return example[:2].repeat(2, *[1] * (example.dim() - 1))[:2]  # a copy: a model may write into its input


def _note_shapes(traced: fx.GraphModule, example: Tensor) -> None:
    """Run the model on two samples; each node gets its shape and type, or its value if it is no tensor."""
    example = _check_example(example)
    with _explaining(example):
        values = run_values(traced, example)
    for node, value in values.items():
        if isinstance(value, Tensor):
            node.meta.update(shape=tuple(value.shape), dtype=value.dtype)
        elif isinstance(value, (tuple, list)) and value and all(isinstance(v, Tensor) for v in value):
            node.meta["tensors"] = [tuple(v.shape) for v in value]
        else:
            node.meta["value"] = value


@contextlib.contextmanager
def _explaining(example: Tensor) -> Iterator[None]:
    """Say which input a model did not take, if it raises an error."""
    try:
        yield
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CaptureError(
            f"the model could not run on an example input of shape {tuple(example.shape)}, {example.dtype}, "
            f"on {example.device}: {reason}\n"
            "  -> pass an input of the shape, dtype and device the model was trained with, batch first"
        ) from error


def assemble(lowering: Lowering) -> Network:
    """The network that a model was lowered to, without refusals."""
    module = fx.GraphModule(lowering.root, lowering.graph)
    module.graph.eliminate_dead_code()
    fold_scales(module)
    like = find_like(lowering.traced)
    for part in module.modules():
        if isinstance(part, Scale):
            part.to(like)
    module.delete_all_unused_submodules()
    module.recompile()
    module.eval().requires_grad_(False)
    bounds = {node.name: bound for node, bound, _ in lowering.sites.values()}
    bounds |= dict.fromkeys(node.name for node in lowering.inner_sites)
    sites = [
        Site(
            str(node.target),
            module.get_submodule(str(node.target)),
            bounds[node.name],
            layout_of(module, node),
        )
        for node in module.graph.nodes
        if node.name in bounds
    ]
    return Network(module, sites, lowering.outputs, sorted(lowering.excluded))


def _joined(outputs: Any) -> Any:
    """The answer of a model, several outputs joined as in its capture."""
    outputs = answer_of(outputs)
    parts = list(outputs.values()) if isinstance(outputs, dict) else outputs
    if isinstance(parts, (tuple, list)) and len(parts) > 1 and all(isinstance(p, Tensor) for p in parts):
        return torch.cat([part.reshape(len(part), -1) for part in parts], 1)[:, None]
    return outputs


def _as_double(example: Tensor) -> Tensor:
    """An example in double precision; numbers of tokens as they are."""
    return example.double() if example.is_floating_point() else example


def _is_rounding(apart: float, model: nn.Module, example: Tensor, expected: Tensor) -> bool:
    """Whether a difference is small, or explained by how far rounding moves the model's output."""
    size = expected.abs().max().item()
    if apart <= 1e-3 * size:
        return True
    moved = torch.finfo(expected.dtype).eps * size  # if the model takes its own precision only
    with contextlib.suppress(Exception), torch.no_grad():
        exact = _joined(copy.deepcopy(model).double()(_as_double(example)))
        moved = float((exact - expected).abs().max())
    return apart <= 1e-3 * size + 100 * moved


def _in_double(model: nn.Module) -> nn.Module:
    """A copy in double precision, in which torch's fake quantisation does not run."""
    doubled = copy.deepcopy(model).double()
    for name, part in list(doubled.named_modules(remove_duplicate=False)):
        if getattr(part, "fake_quant_enabled", False):
            doubled.set_submodule(name, read_fake_quantize(part).double())
    return doubled


def _capture_in_double(
    model: nn.Module, example: Tensor, handles: Sequence[str]
) -> tuple[nn.Module, nn.Module, nn.Module | None, Tensor] | None:
    """The model and its capture in double precision, or None where the model takes its own precision only.

    In single precision the order of a sum, or the last bit of a folded weight, too often decides to which
    value of a grid an activation is rounded.
    """
    with contextlib.suppress(Exception):
        example = _as_double(example)
        doubled, lowering = lower(_in_double(model), example, handles)
        return doubled, assemble(lowering).module, lowering.left_out, example
    return None


def _check_repeats(first: Any, second: Any) -> None:
    """Refuse outputs of one input that differ by more than rounding, which not every GPU routine repeats."""
    if not isinstance(first, Tensor) or first.shape != getattr(second, "shape", None):
        return
    apart = (first - second).abs().max().item()
    if apart > 1e-4 * first.abs().max().item():
        raise CaptureError(
            f"the model gives other outputs when it is called again with the same input: they differ by "
            f"{apart:.3g}\n  -> remove what is random (noise, dropout that stays on) and state kept between "
            "calls"
        )


def _check_alone(
    model: nn.Module, captured: nn.Module, left_out: nn.Module | None, example: Tensor, answer: Tensor
) -> None:
    """Refuse a model that computes with the number of samples, where it takes a single one at all."""
    apart, sample = 0.0, example[:1]
    with contextlib.suppress(Exception), torch.no_grad(), full_precision(sample.device):
        expected, got = _joined(model(sample.clone())), captured(sample)
        got = got if left_out is None else left_out(got)
        apart = (expected - got).abs().max().item() if expected.shape == got.shape else 0.0
    if apart > 0 and not _is_rounding(apart, model, example, answer):
        raise CaptureError(
            f"the model computes with the number of samples: for a single one, the captured network differs "
            f"by {apart:.3g}\n  -> do not use the size of the batch, as in x / x.shape[0]"
        )


def _check_equal(model: nn.Module, captured: nn.Module, left_out: nn.Module | None, example: Tensor) -> None:
    # With the 11 bits of TF32 the same network in another form would look like a different network.
    with torch.no_grad(), full_precision(example.device):
        with _explaining(example):
            outputs = [model(example.clone()) for _ in range(2)]
        expected, again = map(_joined, outputs)
        try:
            got = captured(example)
            got = got if left_out is None else left_out(got)
        except RuntimeError as error:  # shapes do not fit together
            raise _wrong(f"it cannot run: {str(error).splitlines()[0]}") from error
    _check_repeats(expected, again)
    if isinstance(expected, Tensor) and not expected.isfinite().all():
        raise CaptureError(
            "the model's output on the example input or the calibration data has NaN or infinite values\n"
            "  -> normalise the inputs as in training, and check that the weights are the trained ones"
        )
    if not isinstance(expected, Tensor) or expected.shape != got.shape:
        right = tuple(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
        raise _wrong(f"its output has shape {tuple(got.shape)} instead of {right}")
    apart = (expected - got).abs().max().item()
    if not _is_rounding(apart, model, example, expected):
        raise _wrong(f"its output differs by {apart:.3g}")
    _check_alone(model, captured, left_out, example, expected)


def _wrong(found: str) -> CaptureError:
    return CaptureError(
        f"the captured network does not compute what the model computes: {found}\n"
        "  -> look for in-place operations on views, for state kept between calls, and for code that depends "
        "on the type of the input (isinstance)"
    )
