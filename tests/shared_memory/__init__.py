"""Tests of the memory of referenced values: its pool, its readers in other processes, its budget
and what is on disk.
"""
