"""The command line: commands, options and help.

Each command calls the module `command` of the folder that does its work.
"""
