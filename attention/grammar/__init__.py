"""The one grammar of changes, ranges and injections (docs/grammar.md): words to plans, for Python
and every verb.
"""
