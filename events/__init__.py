"""What every operation of a transformer step shares: named rounding events, plans of roundings, the
hook that rounds, injects and records.
"""
