"""The command line: verbs, options and help.

Each verb calls the `command` of the folder that does its work.
"""
