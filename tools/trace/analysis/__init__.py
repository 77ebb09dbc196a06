"""The analysis of a trace: biased events, effects on the results, the running error of P V."""
