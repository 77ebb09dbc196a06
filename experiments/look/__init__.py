"""Verbs that look at numbers and at this machine: formats, sites, explain, doctor."""
