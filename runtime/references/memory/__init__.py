"""The memory of referenced values: where their bytes are kept, lent to other processes of the host,
and put on disk.
"""
