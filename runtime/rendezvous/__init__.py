"""Rendezvous: how the agents of an elastic job agree, round by round, on who takes part and with
which rank.
"""
