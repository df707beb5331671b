"""The blocking and asyncio doors, with real processes on their other side."""
