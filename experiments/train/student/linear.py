"""The products and roundings of a layer: those of `experiments.train.mx.linear`, under the name
that the proxy has for them.
"""

from roundscope.experiments.train.mx.linear import How, linear, passed, rounded

__all__ = ["How", "linear", "passed", "rounded"]
