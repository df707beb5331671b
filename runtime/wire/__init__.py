"""The wire: frames, values and the handshake, as bytes in and bytes out."""
