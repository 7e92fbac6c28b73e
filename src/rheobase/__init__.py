"""Turn a trained ReLU network into a spiking one that answers in a few time steps."""
