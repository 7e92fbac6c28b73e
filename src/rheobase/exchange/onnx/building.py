"""Build a torch module from the nodes of a file: one module per node, with its name.

A value is a constant or a signal. What depends only on constants is computed while reading, so that the
arithmetic on shapes that exporters write disappears. The shapes of signals come from running each new module
on an empty batch.
"""

import onnx
from torch import Tensor, fx

from rheobase.conversion import Refusal, refuse_unknown
from rheobase.exchange.onnx.calls import Builder, Call, Value
from rheobase.exchange.onnx.constants import FOLDS
from rheobase.exchange.onnx.operators import OPERATORS
from rheobase.exchange.onnx.reading import Source


def build(source: Source) -> fx.GraphModule:
    """Build the network of a file.

    Raises:
        ValueError: Some nodes are not supported; all of them are named.
    """
    builder = Builder(source)
    refusals: list[str] = []
    for number, node in enumerate(source.nodes):
        name = node.name or f"{node.op_type}_{number}"
        results: tuple[Value, ...] = ()
        try:
            results = _build_node(builder, node, name)
        except Refusal as refusal:
            refusals.append(f"  {name} ({node.op_type}): {refusal.reason}\n    -> {refusal.remedy}")
        # What reads a refused value is skipped, so that one error names all causes.
        padded = (*results, *[None] * len(node.output))
        builder.values.update(zip(node.output, padded, strict=False))
    if refusals:
        raise ValueError("this ONNX file cannot be read as a network:\n" + "\n".join(refusals))
    return builder.finish()


def _build_node(builder: Builder, node: onnx.NodeProto, name: str) -> tuple[Value, ...]:
    known = node.domain in ("", "ai.onnx") and node.op_type in OPERATORS.keys() | FOLDS.keys()
    if not known and not all(isinstance(builder.values.get(i), Tensor) for i in node.input if i):
        raise refuse_unknown(node.op_type)
    inputs: list[Value] = []
    for i in node.input:
        if i and i not in builder.values:
            raise Refusal(
                f"its input {i!r} is the output of no earlier node", "the file is damaged: export it again"
            )
        if i and builder.values[i] is None:
            return ()
        inputs.append(builder.values[i] if i else None)
    call = Call(builder, node, name, inputs)
    integers = any(signal.grid is not None for signal in call.signals)
    if integers and node.op_type not in ("DequantizeLinear", "Clip"):
        raise Refusal("it reads integers", "put DequantizeLinear right after QuantizeLinear (QDQ format)")
    foldable = known and node.op_type in FOLDS and (node.op_type == "Shape" or not call.signals)
    if not foldable and not call.signals:
        raise Refusal(
            "it computes a constant by an unsupported operator",
            "remove parametrizations such as weight norm, or export with dynamo=True",
        )
    if not foldable and node.op_type not in OPERATORS:
        raise Refusal(
            "it reads the signal, and only shapes are supported here",
            "use slices for parts of a signal, and export it again",
        )
    try:
        result = FOLDS[node.op_type](call) if foldable else OPERATORS[node.op_type](call)
    except (RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = (
            f"it could not be built on inputs of shapes {call.shapes} ({str(error).partition(chr(10))[0]})"
        )
        raise Refusal(reason, "check the file with onnx.checker, or export it again") from error
    return result if isinstance(result, tuple) else (result,)
