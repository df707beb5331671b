"""Calls whose arguments and results are plain data, for clients that have none of the application's
classes: the node that hosts the actor describes its methods, reads arguments by their annotations,
and keeps a record of calls that their clients identify by a key.
"""
