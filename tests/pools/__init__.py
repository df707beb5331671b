"""What pools promise."""
