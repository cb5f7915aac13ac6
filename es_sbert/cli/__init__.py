"""The command line: one module for each command, and the options and messages that commands share.

Command modules import heavy libraries inside functions, so that `--help` is fast.
"""
