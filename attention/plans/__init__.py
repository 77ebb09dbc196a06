"""What is computed: a `Plan` names the rounding of every event and the adder of every sum; presets
and twins are plans with a source.

Not here: the words that change a plan (attention.grammar), and the arithmetic that it asks for
(attention.algorithm, attention.softmax).
"""
