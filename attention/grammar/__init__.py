"""The grammar of changes, ranges and injections (docs/reference/grammar.md), which Python and
every command read alike.

`changes` reads changes of a plan, `edits` has the table of what a change can do, and `differences`
writes the words that make one plan of another. `roundings` reads roundings and accumulators,
`ranges` numbers, and `injections` injections.
"""
