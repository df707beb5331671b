"""Memory that other processes of the host can map: a pool of blocks, and views of the blocks of
other processes.
"""
