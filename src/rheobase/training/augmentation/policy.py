"""The published AutoAugment policy for CIFAR-10, as data.

Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data", CVPR 2019, Table 7 of its appendix.
A sub-policy is a sequence of two operations; an operation is a name, a probability and a level from 0 to 9.
"""

Operation = tuple[str, float, int]
SubPolicy = tuple[Operation, Operation]
Policy = tuple[SubPolicy, ...]

CIFAR10_POLICY: Policy = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
)

LEVELS = 10

# The magnitudes at levels 0 and 9, linear in between; signed ones get a random sign.
SIGNED = {
    "shear_x": (0.0, 0.3),
    "shear_y": (0.0, 0.3),
    "translate_x": (0.0, 150 / 331),
    "translate_y": (0.0, 150 / 331),
    "rotate": (0.0, 30.0),
    "color": (0.0, 0.9),
    "contrast": (0.0, 0.9),
    "brightness": (0.0, 0.9),
    "sharpness": (0.0, 0.9),
}
UNSIGNED = {
    "posterize": (8.0, 4.0),
    "solarize": (256.0, 0.0),
    "autocontrast": (0.0, 0.0),
    "equalize": (0.0, 0.0),
    "invert": (0.0, 0.0),
}
RANGES = SIGNED | UNSIGNED


def find_magnitude(name: str, level: int, sign: int = 1) -> float:
    """The magnitude of an operation at a level; `sign` applies to the signed ones only.

    Units: slope for shears, fraction of the width for translations, degrees for rotations, number of bits for
    posterize, first inverted grey level for solarize, and factor − 1 for the others.
    """
    first, last = RANGES[name]
    magnitude = first + (last - first) * level / (LEVELS - 1)
    if name == "posterize":
        return float(round(magnitude))
    return sign * magnitude if name in SIGNED else magnitude
