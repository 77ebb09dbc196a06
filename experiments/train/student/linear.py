"""The products and roundings of a layer, under the name that the proxy has for them.

They are those of `experiments.train.mx.linear`.
"""

from roundscope.experiments.train.mx.linear import How, linear, passed, rounded

__all__ = ["How", "linear", "passed", "rounded"]
