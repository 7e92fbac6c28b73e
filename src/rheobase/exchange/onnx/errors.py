"""Errors that callers tell apart, in a file that needs no package onnx."""


class SizeError(ValueError):
    """The file fixes other sizes of its input than those that were given."""
