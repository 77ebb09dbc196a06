"""Plans, which say what is computed: `Plan` names the rounding of every event and the accumulator
of every sum.

`plan` has `Plan`, and `record` its fields and what follows from them. Its choices are declared in
`forward`, `backward`, `served` and `tiles`, each with everything that is said of it (`choice`);
`choices` has their types, and `checks` what else is refused of a plan. Plans with a source are in
`presets` and `twins`. `traced` makes plans data of an XLA program.

The words that change a plan are in attention.grammar, and the arithmetic that a plan asks for is in
attention.algorithm and attention.softmax.
"""
