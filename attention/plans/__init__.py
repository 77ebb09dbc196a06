"""Plans, which say what is computed: `Plan` names the rounding of every event and the accumulator
of every sum.

`plan` has the record, `checks` what is refused of it and `choices` the types of its fields.
Presets and twins are plans with a source: `presets`, `blackwell`, `twins`, `released`, `unfused`
and `hopper`. `traced` makes plans data of an XLA program.

The words that change a plan are in attention.grammar, and the arithmetic that a plan asks for is in
attention.algorithm and attention.softmax.
"""
