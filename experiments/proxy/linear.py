"""The products and roundings of a layer: those of `experiments.mx.linear`, under the name that the proxy has for them."""

from experiments.mx.linear import How, linear, passed, rounded

__all__ = ["How", "linear", "passed", "rounded"]
