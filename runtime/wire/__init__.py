"""The wire: frames, the codec for what users send, and the handshake. Bytes in, values out; no
sockets, no clock, no tasks.
"""
