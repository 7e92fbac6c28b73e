"""Runs a chain of layers in lava-nc's fixed-point model of Loihi.

A program for the Python 3.10 that lava-nc needs: `python lava_process.py NETWORK SPIKES`, where
NETWORK and SPIKES are .npz files. It imports nothing from this package.
"""

import sys
from typing import Any

import numpy as np
from lava.magma.core.run_conditions import RunSteps  # type: ignore[import-not-found]
from lava.magma.core.run_configs import Loihi1SimCfg  # type: ignore[import-not-found]
from lava.proc.dense.process import Dense  # type: ignore[import-not-found]
from lava.proc.io.sink import RingBuffer  # type: ignore[import-not-found]
from lava.proc.lif.models import PyLifModelBitAcc  # type: ignore[import-not-found]
from lava.proc.lif.process import LIF  # type: ignore[import-not-found]

UNIT = 6
"""Number of bits by which lava shifts up sums, thresholds and these biases."""


def _subtract(model: Any, spike_vector: Any) -> None:
    """Subtract the threshold from the membrane; lava's own neuron sets it to zero."""
    model.v[spike_vector] -= np.asarray(model.effective_vth, dtype=np.int32)


PyLifModelBitAcc.reset_voltage = _subtract


def run(network: Any) -> Any:
    """The spikes (samples, steps, neurons) of every layer, by the number of the layer."""
    samples, steps, depth = len(network["currents"]), int(network["steps"]), int(network["layers"])
    total = steps + depth - 1
    neurons = [_make_neurons(network, number) for number in range(depth)]
    sinks = [RingBuffer(shape=layer.proc_params["shape"], buffer=total) for layer in neurons]
    for number, (layer, sink) in enumerate(zip(neurons, sinks)):  # noqa: B905 - Python 3.10
        layer.s_out.connect(sink.a_in)
        if number:
            # Weights of both signs lose their lowest bit, so they are doubled, and sums halved.
            dense = Dense(weights=2 * network[f"weight{number}"], weight_exp=-1)
            neurons[number - 1].s_out.connect(dense.s_in)
            dense.a_out.connect(layer.a_in)
    spikes = [np.zeros((samples, steps, *sink.proc_params["shape"]), dtype=bool) for sink in sinks]
    config, once = Loihi1SimCfg(select_tag="fixed_pt"), RunSteps(num_steps=1)
    for sample in range(samples):
        for step in range(total):
            # Spikes take one step to the next layer, so a layer starts as many steps late as it is deep. Its
            # membrane is set then, so that earlier steps have no effect.
            if sample or step:
                if step == 0:
                    neurons[0].bias_mant.set(network["currents"][sample])
                if step < depth:
                    neurons[step].v.set(network[f"start{step}"])
            neurons[0].run(condition=once, run_cfg=config)
            for number, sink in enumerate(sinks):
                if 0 <= step - number < steps:
                    place = (sample * total + step) % total
                    spikes[number][sample, step - number] = sink.data.get()[:, place]
    neurons[0].stop()
    return {f"spikes{number}": found for number, found in enumerate(spikes)}


def _make_neurons(network: Any, number: int) -> Any:
    start = network[f"start{number}"]
    return LIF(
        shape=start.shape,
        du=4095,  # currents do not last
        dv=0,  # membranes do not leak
        vth=int(network[f"threshold{number}"]),
        bias_mant=network["currents"][0] if number == 0 else network[f"bias{number}"],
        bias_exp=UNIT,
        v=start,
    )


if __name__ == "__main__":
    np.savez_compressed(sys.argv[2], **run(np.load(sys.argv[1])))
