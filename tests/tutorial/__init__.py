"""The tutorial of the docs: its commands are run, and what they print is compared."""
