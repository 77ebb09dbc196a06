"""The command line of the tools: their commands, and the options that commands share.

Each command calls the module `command` of the folder that does its work.
"""
