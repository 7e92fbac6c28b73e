"""Build a torch module from the nodes of a file: one module per node, with its name.

A value is a constant or a signal. What depends only on constants is computed while reading, so that the
arithmetic on shapes that exporters write disappears. The shapes of signals come from running each new module
without values, on torch's meta device.
"""

import onnx
from torch import Tensor, fx

from rheobase.conversion import Refusal, refuse_unknown
from rheobase.exchange.onnx.calls import Builder, Call, Signal, Value
from rheobase.exchange.onnx.constants import fold
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
        # The input keeps its place, also where it lies between other values.
        fresh = zip(node.output, padded, strict=False)
        builder.values.update((out, value) for out, value in fresh if out != source.input)
    if refusals:
        remedy = "or read the part of the file before or after these nodes, by outputs= and input="
        raise ValueError("\n".join(["this ONNX file cannot be read as a network:", *refusals, remedy]))
    return builder.finish()


def _build_node(builder: Builder, node: onnx.NodeProto, name: str) -> tuple[Value, ...]:
    known = node.domain in ("", "ai.onnx") and node.op_type in (*OPERATORS, "Shape", "Size")
    read = [builder.values.get(i) for i in node.input if i]
    unread = node.domain not in ("", "ai.onnx") and None in read  # of a refused node
    if not known and (unread or any(isinstance(value, Signal) for value in read)):
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
    folds = not call.signals or node.op_type in ("Shape", "Size")
    try:
        result = fold(call) if folds else OPERATORS[node.op_type](call)
    except (RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = (
            f"it could not be built on inputs of shapes {call.shapes} ({str(error).partition(chr(10))[0]})"
        )
        remedy = "give larger sizes by shape=, check the file with onnx.checker, or export it again"
        raise Refusal(reason, remedy) from error
    values: tuple[Tensor | Value, ...] = result if isinstance(result, tuple) else (result,)
    return values
