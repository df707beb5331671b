"""The tags that cbor2 decodes by itself, of which no decoder of this project wants any.

Some build large or surprising objects from few bytes: regular expressions, e-mails, references
that make cycles. Each decoder refuses them, and takes only tags of its own. Left out are 2 and 3,
integers of more than 64 bits, which are plain data.
"""

BUILTIN_TAGS = (
    *(0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004),
    *(43_000, 55_799),
)
